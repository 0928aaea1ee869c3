// The official TypeScript client under servers that are killed: it calls until a line comes on standard input, then
// prints what was acknowledged and what failed as JSON. Usage: node surviving_client.mjs MODE URL TOKEN NAME
import { createInterface } from "node:readline";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const [mode, url, token, name] = process.argv.slice(2);
const report = { tried: [], acknowledged: [], errors: [], sessions: 0, calls: 0 };
let ending = false;
createInterface({ input: process.stdin }).once("line", () => (ending = true));
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

const connect = async () => {
  const client = new Client(
    { name, version: "1" },
    { versionNegotiation: { mode: mode === "legacy" ? mode : { pin: mode } } },
  );
  const requestInit = { headers: { Authorization: `Bearer ${token}` } };
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit }));
  report.sessions += 1;
  return client;
};

const call = async (client, tool, args) => {
  const result = await client.callTool({ name: tool, arguments: args }, { timeout: 15_000 });
  if (result.isError) throw new Error(result.content[0].text);
  report.calls += 1;
};

let client;
for (let count = 0; !ending; count += 1) {
  const key = `${name}-${count}`;
  try {
    client ??= await connect();
    report.tried.push(key);
    if (count % 24 === 12) {
      await call(client, "SetCallback", { action: "set", message: key, delay_seconds: 3, repeat_count: 1 });
    } else {
      await call(client, "TaskManager", { action: "create", query: "", text: key });
    }
    report.acknowledged.push(key);
    await call(client, "wait", { seconds: count % 5 === 0 ? 1.2 : 0.1 });
  } catch (error) {
    report.errors.push({ at: Date.now() / 1000, text: String(error.message ?? error) });
    if (/404|session/i.test(String(error.message))) {
      client?.close().catch(() => {});
      client = undefined;
    }
    await pause(0.3);
  }
}
console.log(JSON.stringify(report));
process.exit(0);
