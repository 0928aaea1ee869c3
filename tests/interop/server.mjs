// The official TypeScript SDK's server over stdio: echo(text), and the tool list in the file named by its argument.
// A peer of `make bench`; it lies here because packages are looked up beside the file.
import { readFileSync } from "node:fs";
import { Server } from "@modelcontextprotocol/server";
import { StdioServerTransport } from "@modelcontextprotocol/server/stdio";

const listed = JSON.parse(readFileSync(process.argv[2], "utf8"));
const server = new Server({ name: "peer", version: "1" }, { capabilities: { tools: {} } });
server.setRequestHandler("tools/list", () => listed);
server.setRequestHandler("tools/call", ({ params }) => ({ content: [{ type: "text", text: params.arguments.text }] }));
await server.connect(new StdioServerTransport());
