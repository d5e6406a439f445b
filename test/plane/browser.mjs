// Opens one address in a real Chromium as two people. Each uses the proxy of its own device.
// Prints the view of each as one line of JSON.
import { createRequire } from 'node:module'

const require = createRequire(new URL('../../web/package.json', import.meta.url))
const { chromium } = require('playwright-core')
const { DASHBOARD: base, CHROMIUM: executablePath } = process.env

// Chromium has no sandbox as root, and the pages are the product's own.
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-dev-shm-usage'], proxy: { server: 'per-context' } })
for (const [who, server] of JSON.parse(process.env.PEOPLE)) {
  const context = await browser.newContext({ proxy: { server }, ignoreHTTPSErrors: true }) // the testbed has its own CA
  context.setDefaultTimeout(60_000)
  const page = await context.newPage()
  const asked = new Set()
  page.on('request', (r) => /^(data|blob):/.test(r.url()) || asked.add(new URL(r.url()).origin))
  const res = await page.goto(base + '/settings')
  if (res.ok()) await page.getByText(who, { exact: false }).first().waitFor()
  console.log(JSON.stringify({ who, status: res.status(), title: await page.title(), text: await page.locator('body').innerText(), scripts: await page.locator('script').count(), asked: [...asked] }))
  await context.close()
}
await browser.close()
