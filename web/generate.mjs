// Writes src/api.gen.ts: the types of the API's JSON, from the OpenAPI document of the server. With --check it only
// compares. A Go test computes the same checksum, so types older than the document fail without Node.
import { createHash } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import openapiTS, { astToString } from 'openapi-typescript'

const document = fileURLToPath(new URL('../internal/plane/openapi.json', import.meta.url))
const target = fileURLToPath(new URL('src/api.gen.ts', import.meta.url))

// The texts for people do not change the types.
const { openapi, info, paths, components } = JSON.parse(readFileSync(document, 'utf8'), function (key, value) {
  return key === 'description' && typeof value === 'string' ? undefined : value
})
// The schemas of the JSON of successful responses, by operation: "GET /me".
const base = '/api/v1'
const responses = []
for (const [path, methods] of Object.entries(paths)) {
  for (const [method, { responses: all }] of Object.entries(methods)) {
    const schema = (all[200] ?? all[202]).content['application/json']?.schema
    if (path.startsWith(base + '/') && schema?.$ref) responses.push([`${method.toUpperCase()} ${path.slice(base.length)}`, schema])
  }
}
responses.sort(([a], [b]) => (a < b ? -1 : 1))
const sum = createHash('sha256').update(JSON.stringify([components.schemas, Object.fromEntries(responses)])).digest('hex')
components.schemas.Responses = { type: 'object', properties: Object.fromEntries(responses), required: responses.map(([operation]) => operation) }
const types = await openapiTS({ openapi, info, paths: {}, components }, { alphabetize: true, rootTypes: true, rootTypesNoSchemaPrefix: true, rootTypesKeepCasing: true })
const text = `// Generated from the OpenAPI document. Do not edit; run: npm run generate
// schemas: ${sum}

${astToString(types)}`

if (!process.argv.includes('--check')) writeFileSync(target, text)
else if (readFileSync(target, 'utf8') !== text) {
  console.error('src/api.gen.ts differs from the OpenAPI document. Run: npm run generate')
  process.exit(1)
}
