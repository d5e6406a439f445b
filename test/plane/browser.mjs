// Opens one address in a real Chromium as two people, each behind the proxy that makes
// whoever uses it a device of theirs, and says what each sees as one line of JSON.
import { createRequire } from 'node:module'

const require = createRequire(new URL('../../web/package.json', import.meta.url))
const { chromium } = require('playwright-core')
const { DASHBOARD: base, CHROMIUM: executablePath } = process.env

// Root has no sandbox; the pages are our own.
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-dev-shm-usage'], proxy: { server: 'per-context' } })
for (const [who, server] of JSON.parse(process.env.PEOPLE)) {
  const context = await browser.newContext({ proxy: { server }, ignoreHTTPSErrors: true }) // the authority is the testbed's own
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
