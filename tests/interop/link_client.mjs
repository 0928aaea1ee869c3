// The official TypeScript client calls a tool for which its person has to open a link.
// Usage: node link_client.mjs MODE URL TOKEN TOOL ARGUMENTS; MODE is legacy or a revision to pin.
// It says, a line of JSON each: {listed}, and reads a line; {open: {url, message}}, and reads the action of its person;
// {said}, what came of it all.
import { createInterface } from "node:readline";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const [mode, url, token, tool, words] = process.argv.slice(2);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const ask = async (question) => {
  console.log(JSON.stringify(question));
  return (await lines.next()).value;
};

const client = new Client(
  { name: "tests", version: "1" },
  {
    capabilities: { elicitation: { url: {} } },
    versionNegotiation: { mode: mode === "legacy" ? mode : { pin: mode } },
  },
);
const ids = [];
const completed = [];
client.setRequestHandler("elicitation/create", async ({ params }) => {
  ids.push(params.elicitationId);
  return { action: await ask({ open: { url: params.url, message: params.message } }) };
});
client.setNotificationHandler("notifications/elicitation/complete", ({ params }) => {
  completed.push(params.elicitationId);
});
await client.connect(
  new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { Authorization: `Bearer ${token}` } } }),
);
let names = [];
while (!names.includes(tool)) names = (await client.listTools()).tools.map(({ name }) => name);
await ask({ listed: names });
const results = [];
for (let call = 0; call < 2; call += 1) results.push(await client.callTool({ name: tool, arguments: JSON.parse(words) }));
const revision = client.getNegotiatedProtocolVersion();
await client.close();
console.log(JSON.stringify({ said: { revision, results, ids, completed } }));
process.exit(0);
