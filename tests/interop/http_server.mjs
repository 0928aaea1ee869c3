// The official TypeScript SDK's server over Streamable HTTP, by its adapter for node:http: echo(text), JSON answers, a
// server a session. A peer of `make bench`; it lies here because packages are looked up beside the file.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { NodeStreamableHTTPServerTransport, localhostHostValidation } from "@modelcontextprotocol/node";
import { Server } from "@modelcontextprotocol/server";

const transports = new Map();
const hostIsOurs = localhostHostValidation();

async function opened() {
  const transport = new NodeStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    enableJsonResponse: true,
    onsessioninitialized: (id) => transports.set(id, transport),
  });
  const server = new Server({ name: "peer", version: "1" }, { capabilities: { tools: {} } });
  server.setRequestHandler("tools/call", ({ params }) => ({ content: [{ type: "text", text: params.arguments.text }] }));
  await server.connect(transport);
  return transport;
}

const site = createServer(async (request, response) => {
  if (!hostIsOurs(request, response)) return;
  const transport = transports.get(request.headers["mcp-session-id"]) ?? (await opened());
  await transport.handleRequest(request, response);
});
site.listen(0, "127.0.0.1", 2048, () => console.error(`http://127.0.0.1:${site.address().port}`));
