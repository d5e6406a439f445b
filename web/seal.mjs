// Writes dist/source.sha256: what the bundle was built from. A Go test computes
// the same from the tree, so a bundle older than its source fails without Node.
import { createHash } from 'node:crypto'
import { readFileSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('.', import.meta.url))
const parts = ['index.html', 'package-lock.json', 'package.json', 'seal.mjs', 'src', 'svelte.config.js', 'tsconfig.json', 'vite.config.ts']

function files(name) {
  return name.includes('.') ? [name] : readdirSync(join(root, name), { withFileTypes: true })
    .flatMap((e) => (e.isDirectory() ? files(`${name}/${e.name}`) : [`${name}/${e.name}`]))
}

const all = parts.flatMap(files).sort((a, b) => (a < b ? -1 : 1))
const sum = createHash('sha256')
for (const name of all) {
  sum.update(`${createHash('sha256').update(readFileSync(join(root, name))).digest('hex')}  ${name}\n`)
}
writeFileSync(join(root, '../internal/plane/web/dist/source.sha256'), sum.digest('hex') + '\n')
