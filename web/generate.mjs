// Writes src/api.gen.ts: the types of the API's JSON, from the OpenAPI document of the server. With --check it only
// compares. A Go test computes the same checksum, so types older than the document fail without Node.
import { createHash } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import openapiTS, { astToString } from 'openapi-typescript'

const document = fileURLToPath(new URL('../internal/plane/openapi.json', import.meta.url))
const target = fileURLToPath(new URL('src/api.gen.ts', import.meta.url))

// The texts for people do not change the types.
const { openapi, info, components } = JSON.parse(readFileSync(document, 'utf8'), function (key, value) {
  return key === 'description' && typeof value === 'string' ? undefined : value
})
const sum = createHash('sha256').update(JSON.stringify(components)).digest('hex')
const types = await openapiTS({ openapi, info, paths: {}, components }, { alphabetize: true, rootTypes: true, rootTypesNoSchemaPrefix: true, rootTypesKeepCasing: true })
const text = `// Generated from the OpenAPI document. Do not edit; run: npm run generate
// schemas: ${sum}

${astToString(types)}`

if (!process.argv.includes('--check')) writeFileSync(target, text)
else if (readFileSync(target, 'utf8') !== text) {
  console.error('src/api.gen.ts differs from the OpenAPI document. Run: npm run generate')
  process.exit(1)
}
