// The official TypeScript client against a server: does one of each and prints what came of it as JSON.
// Usage: node client.mjs MODE FOLDER COMMAND [ARGUMENT …]; MODE is legacy, auto or a revision to pin, COMMAND what to
// start and speak to over stdio, or the URL of what listens: a path of /sse means HTTP+SSE.
import { existsSync, writeFileSync } from "node:fs";
import { Client, SSEClientTransport, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

const [mode, folder, command, ...args] = process.argv.slice(2);
const client = new Client(
  { name: "tests", version: "1" },
  {
    capabilities: { elicitation: {} },
    versionNegotiation: { mode: mode === "legacy" || mode === "auto" ? mode : { pin: mode } },
  },
);
const forms = [];
client.setRequestHandler("elicitation/create", ({ params }) => {
  const [key, choices] = Object.entries(params.requestedSchema.properties)[0];
  forms.push({ message: params.message, choices: choices.enum });
  return { action: "accept", content: { [key]: choices.enum[0] } };
});
const env = { PATH: process.env.PATH, HOME: process.env.HOME, TOOLGATE_STATE: process.env.TOOLGATE_STATE };
const overHttp = (url) =>
  url.pathname === "/sse" ? new SSEClientTransport(url) : new StreamableHTTPClientTransport(url);
const transport = command.startsWith("http:")
  ? overHttp(new URL(command))
  : new StdioClientTransport({ command, args, env, cwd: folder, stderr: "inherit" });

const failure = (promise) => promise.then((result) => ({ result }), ({ code, message }) => ({ code, message }));
const call = (name, args, options) => client.callTool({ name, arguments: args }, options);

await client.connect(transport);
const said = {};
said.revision = client.getNegotiatedProtocolVersion();
said.server = client.getServerVersion()?.name;
said.tools = (await client.listTools()).tools.map(({ name }) => name);
said.called = await call("Bash", { command: "echo out; exit 3" });
said.unknown = await failure(call("NoSuchTool", {}));
said.wrong = await call("Bash", { command: "true", timeout: "soon" });
const question = { question: "Tea or coffee?", options: ["tea", "coffee"] };
said.asked = await call("AskUserQuestion", { questions_json: JSON.stringify([question]) });
said.forms = forms;

const proceed = `${folder}/proceed`;
const progress = [];
const onprogress = (step) => {
  progress.push(step);
  if (step.message?.includes("one") && !existsSync(proceed)) writeFileSync(proceed, ""); // now the command goes on
};
said.slow = await call("Bash", { command: "echo one; until [ -e proceed ]; do sleep 0.05; done; echo two" }, { onprogress });
said.progress = progress;

const gone = new AbortController();
const long = failure(call("Bash", { command: "echo $$ > begun; exec sleep 63.573" }, { signal: gone.signal }));
await call("Bash", { command: "until [ -s begun ]; do sleep 0.02; done" });
gone.abort("enough");
said.cancelled = await long;
said.after = await call("Bash", { command: "while kill -0 $(cat begun) 2>/dev/null; do sleep 0.02; done; echo gone" });

const began = performance.now();
await client.close();
said.closing = performance.now() - began; // ms
console.log(JSON.stringify(said));
