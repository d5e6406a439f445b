// Opens the page of recordings in a real Chromium, by the proxy of a person's device, and plays the recording PLAY if it is set. Prints what
// the page and its terminal show as one line of JSON.
import { createRequire } from 'node:module'

const require = createRequire(new URL('../../web/package.json', import.meta.url))
const { chromium } = require('playwright-core')
const { DASHBOARD: base, CHROMIUM: executablePath, PROXY: server, PLAY: id } = process.env

// Chromium has no sandbox as root, and the pages are the product's own.
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-dev-shm-usage'], proxy: { server: 'per-context' } })
const context = await browser.newContext({ proxy: { server }, ignoreHTTPSErrors: true }) // the testbed has its own CA
context.setDefaultTimeout(60_000)
const page = await context.newPage()
const wrong = []
page.on('console', (m) => m.type() === 'error' && wrong.push(m.text()))
page.on('pageerror', (e) => wrong.push(e.stack))
await page.goto(base + '/recordings' + (id ? `?open=${id}` : ''))
await page.locator('.panel tr.row, .notice, .panel h2, .panel h3').first().waitFor()
let terminal = ''
if (id) {
  const dialog = page.getByRole('dialog')
  await dialog.getByRole('button', { name: 'Play the recording' }).click()
  await dialog.getByText(/^end: /).waitFor()
  terminal = await dialog.getByRole('region', { name: 'Terminal' }).innerText()
}
console.log(JSON.stringify({ text: await page.locator('main').innerText(), terminal, hurt: await page.evaluate(() => !!window.hurt), wrong }))
await browser.close()
