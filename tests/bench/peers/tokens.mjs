// Count the tokens of each string of a JSON list on standard input, by OpenAI's cl100k.
import { encode } from "gpt-tokenizer/encoding/cl100k_base";

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const texts = JSON.parse(Buffer.concat(chunks).toString("utf8"));
process.stdout.write(JSON.stringify(texts.map((text) => encode(text, { disallowedSpecial: new Set() }).length)));
