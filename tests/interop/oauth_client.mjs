// The official TypeScript client against a server that wants people to sign in.
// Usage: node oauth_client.mjs MODE URL [DOCUMENT]; MODE is legacy, auto or a revision to pin, a URL whose path is /sse
// means HTTP+SSE, DOCUMENT is the URL of the client's metadata document; without, the client registers.
// It says, a line of JSON each: {visit: URL} where a person is to go, and reads the URL they are sent back to; {token},
// and reads an empty line when it has ended; {said}, what came of it all.
import { createInterface } from "node:readline";
import { Client, SSEClientTransport, StreamableHTTPClientTransport, UnauthorizedError } from "@modelcontextprotocol/client";

const [mode, target, documentUrl] = process.argv.slice(2);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const ask = async (question) => {
  console.log(JSON.stringify(question));
  return (await lines.next()).value;
};

const kept = { issued: [] };
let visits = 0;
let back;
const authProvider = {
  redirectUrl: "http://127.0.0.1:3030/callback", // no program listens: the person's answer is passed on
  clientMetadataUrl: documentUrl,
  clientMetadata: {
    client_name: "Fernhill",
    redirect_uris: ["http://127.0.0.1:3030/callback"],
    grant_types: ["authorization_code", "refresh_token"],
    response_types: ["code"],
    token_endpoint_auth_method: "none",
  },
  state: () => crypto.randomUUID(),
  clientInformation: () => kept.client,
  saveClientInformation: (client) => void (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => {
    kept.tokens = tokens;
    kept.issued.push({ access: tokens.access_token, refresh: tokens.refresh_token, scope: tokens.scope });
  },
  saveCodeVerifier: (verifier) => void (kept.verifier = verifier),
  codeVerifier: () => kept.verifier,
  saveDiscoveryState: (state) => void (kept.discovery = state),
  discoveryState: () => kept.discovery,
  redirectToAuthorization: async (url) => {
    visits += 1;
    back = new URL(await ask({ visit: String(url) }));
  },
};

const url = new URL(target);
const open = () =>
  url.pathname === "/sse"
    ? new SSEClientTransport(url, { authProvider })
    : new StreamableHTTPClientTransport(url, { authProvider });
const begin = () =>
  new Client(
    { name: "tests", version: "1" },
    { versionNegotiation: { mode: mode === "legacy" || mode === "auto" ? mode : { pin: mode } } },
  );

let client = begin();
let transport = open();
try {
  await client.connect(transport);
  if (mode !== "legacy" && mode !== "auto") await client.listTools(); // a pinned client asks nothing before
} catch (error) {
  if (!(error instanceof UnauthorizedError)) throw error;
  await transport.finishAuth(back.searchParams);
  await client.close();
  client = begin();
  transport = open();
  await client.connect(transport);
}
const said = { tools: (await client.listTools()).tools.map(({ name }) => name) };
said.revision = client.getNegotiatedProtocolVersion();
said.first = await client.callTool({ name: "Bash", arguments: { command: "echo one" } });
await ask({ token: kept.tokens.access_token });
said.second = await client.callTool({ name: "Bash", arguments: { command: "echo two" } });
await client.close();
console.log(JSON.stringify({ said: { ...said, visits, client: kept.client, issued: kept.issued } }));
process.exit(0);
