// The AI SDK's client with its receiver of events. It prints what happens as JSON lines, and reads steps from its input.
import https from 'node:https'
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { createMCPClient, experimental_createMCPEventWebhook } from '@ai-sdk/mcp'

const [url, token, certificate, discovery] = process.argv.slice(2)
const print = value => process.stdout.write(JSON.stringify(value) + '\n')
const records = new Map()
const store = {
  async get(key) { return structuredClone(records.get(key)) },
  async getById(id) { return structuredClone([...records.values()].find(record => record.id === id)) },
  async set(record) { records.set(record.key, structuredClone(record)) },
  async update(key, changes) { records.set(key, { ...records.get(key), ...structuredClone(changes) }) },
  async delete(key) { records.delete(key) },
}
const receive = experimental_createMCPEventWebhook({
  store,
  async onEvent({ event }) { print({ event }) },
  async onTerminated({ termination }) { print({ termination }) },
  onError(error) { print({ error: String(error) }) },
})

const pem = readFileSync(certificate)
const receiver = https.createServer({ key: pem, cert: pem }, async (request, response) => {
  const chunks = []
  for await (const chunk of request) chunks.push(chunk)
  const { method, headers } = request
  const answer = await receive(
    new Request(`https://localhost:${receiver.address().port}${request.url}`, { method, headers, body: Buffer.concat(chunks) }),
  )
  print({ answered: answer.status })
  response.writeHead(answer.status, Object.fromEntries(answer.headers))
  response.end(Buffer.from(await answer.arrayBuffer()))
})
await new Promise(resolve => receiver.listen(0, '127.0.0.1', resolve))

const connect = () =>
  createMCPClient({
    transport: { type: 'http', url, headers: { Authorization: `Bearer ${token}` } },
    protocolVersionDiscovery: discovery === 'discover',
    experimental_events: { store },
  })
const steps = {
  async list(events) { return await events.list() },
  async subscribe(events) {
    const delivery = { mode: 'webhook', url: `https://localhost:${receiver.address().port}/hook` }
    return await events.subscribe({ name: 'command.ended', arguments: {}, ttlMs: 3_600_000, delivery })
  },
  async refresh(events) { return await events.refresh({ id: [...records.values()][0].id }) },
  async unsubscribe(events) {
    await events.unsubscribe({ id: [...records.values()][0].id })
    return records.size
  },
}
for await (const step of createInterface({ input: process.stdin })) {
  const client = await connect() // it hangs up after each step
  try {
    print({ [step]: await steps[step](client.experimental_events) })
  } catch (error) {
    print({ failed: `${step}: ${error.message} ${error.cause ?? ''}` })
  }
  await client.close()
}
receiver.close()
receiver.closeAllConnections()
