// A server with the official TypeScript SDK over stdio, to be mounted: `node mounted_server.mjs 1` or `2`, the SDK's
// major version. It lies here because packages are looked up beside the file.
const version = process.argv[2];

const SUM = {
  name: "add",
  title: "Add",
  description: "Add two numbers.",
  inputSchema: { type: "object", properties: { a: { type: "number" }, b: { type: "number" } }, required: ["a", "b"] },
  outputSchema: { type: "object", properties: { sum: { type: "number" } }, required: ["sum"] },
  annotations: { readOnlyHint: true, openWorldHint: false },
  icons: [{ src: "data:image/png;base64,", mimeType: "image/png", sizes: ["48x48"] }],
  _meta: { "example.com/rank": 1.5 },
};
const LINK = { name: "link", description: "Return a link.", inputSchema: { type: "object" } };
const NOTE = { uri: "note://first", name: "first", title: "First", mimeType: "text/plain", size: 5 };
const ANSWERS = {
  "tools/list": () => ({ tools: [SUM, LINK] }),
  "tools/call": ({ params }) => call(params),
  "prompts/list": () => ({ prompts: [{ name: "greet", arguments: [{ name: "who", required: true }] }] }),
  "prompts/get": ({ params }) => ({
    messages: [{ role: "user", content: { type: "text", text: `Good morning, ${params.arguments.who}` } }],
  }),
  "resources/list": () => ({ resources: [NOTE] }),
  "resources/templates/list": () => ({ resourceTemplates: [{ uriTemplate: "note://{name}/text", name: "note" }] }),
  "resources/read": ({ params }) => ({ contents: [{ uri: params.uri, mimeType: "text/plain", text: "First" }] }),
};

function call({ name, arguments: given = {} }) {
  if (name === "link") return { content: [{ type: "resource_link", ...NOTE }], _meta: { "example.com/cost": 1e3 } };
  if (name !== "add") throw new Error(`no tool ${name}`);
  const sum = given.a + given.b;
  return { content: [{ type: "text", text: `${sum}` }], structuredContent: { sum } };
}

const capabilities = { tools: { listChanged: true }, prompts: {}, resources: {} };
const info = [{ name: "typescript", version: "1" }, { capabilities, instructions: "Add." }];
if (version === "1") {
  const { Server } = await import("@modelcontextprotocol/sdk/server/index.js");
  const { StdioServerTransport } = await import("@modelcontextprotocol/sdk/server/stdio.js");
  const types = await import("@modelcontextprotocol/sdk/types.js");
  const server = new Server(...info);
  for (const schema of Object.values(types)) {
    const method = schema?.shape?.method?.value;
    if (method in ANSWERS) server.setRequestHandler(schema, ANSWERS[method]);
  }
  await server.connect(new StdioServerTransport());
} else {
  const { Server } = await import("@modelcontextprotocol/server");
  const { serveStdio } = await import("@modelcontextprotocol/server/stdio");
  serveStdio(() => {
    const server = new Server(...info);
    for (const [method, answer] of Object.entries(ANSWERS)) server.setRequestHandler(method, answer);
    return server;
  });
}
