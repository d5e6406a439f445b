// Looks at the dashboard in a real Chromium. Each check is one line of JSON on the
// standard output, which the Go test makes a test of. Waits are for conditions; no
// check measures time, but two report it.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'

const require = createRequire(new URL('../../web/package.json', import.meta.url))
const { chromium } = require('playwright-core')
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8')
const base = process.env.DASHBOARD

const say = (name, ok, detail = '') => console.log(JSON.stringify({ name, ok, detail: String(detail) }))
const act = async (name) => {
  const r = await fetch(`${process.env.ACTS}/${name}`, { method: 'POST' })
  if (!r.ok) throw new Error(`act ${name}: ${r.status}`)
}
async function check(name, f) {
  if (!only.test(name)) return
  const began = performance.now()
  try {
    const said = await f()
    say(name, true, `${said ? said + '; ' : ''}took ${Math.round(performance.now() - began)} ms`)
  } catch (e) {
    say(name, false, `${e.stack ?? e}\nThe page shows ${await shown()}`)
    await act('alice') // who the checks after it are of
  }
}
// shown is what stands on the page that was opened last.
let last
async function shown() {
  try {
    return `${last.url()}:\n${(await last.innerText('body')).slice(0, 3000)}\n${last.wrong.join('\n')}`
  } catch (e) {
    return `nothing: ${e}`
  }
}
// soon waits for what a page shows a moment after a key.
async function soon(ok, what) {
  for (const end = Date.now() + 60_000; !(await ok()); await new Promise((r) => setTimeout(r, 50))) {
    if (Date.now() > end) throw new Error(await what())
  }
}
function must(ok, what) {
  if (!ok) throw new Error(what)
}

// One part by itself: CHECKS='keys|axe'.
const only = new RegExp(process.env.CHECKS ?? '')
// Root has no sandbox; the pages are our own.
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox', '--disable-dev-shm-usage'] })

/** A page on which everything that must not happen is noted. */
async function open(path, { theme = 'light', width = 1280, height = 860, bypass = false } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: theme, bypassCSP: bypass, reducedMotion: 'reduce', acceptDownloads: true })
  context.setDefaultTimeout(60_000)
  const page = (last = await context.newPage())
  page.wrong = []
  page.on('console', (m) => m.type() === 'error' && !/status of 40[134]/.test(m.text()) && page.wrong.push(m.text()))
  page.on('pageerror', (e) => page.wrong.push(e.stack))
  page.on('dialog', (d) => (page.wrong.push(`dialog ${d.message()}`), d.dismiss()))
  page.on('request', (r) => new URL(r.url()).origin !== base && !r.url().startsWith('data:') && !r.url().startsWith('blob:') && page.wrong.push(`asked ${r.url()}`))
  await page.addInitScript(() => {
    addEventListener('securitypolicyviolation', (e) => console.error(`policy: ${e.violatedDirective} ${e.blockedURI} ${e.sample}`))
  })
  await page.goto(base + path)
  return page
}
const well = (page) => must(page.wrong.length === 0, page.wrong.join('\n'))
const go = async (page, path) => {
  await page.goto(base + path)
  await settled(page)
}
/** When what a page reads has been read. */
async function settled(page) {
  await page.locator('h1').waitFor()
  await page.locator('.link.live').waitFor()
  await page.locator('main div.wait, main .blank, main :text("Reading")').first().waitFor({ state: 'detached' })
}

/** The changes that whoever is here may see. */
async function changes() {
  return (await (await fetch(base + '/api/v1/changes?sort=opened')).json()).data
}

const pages = ['/', '/clusters', '/clusters?open=prod-eu', '/signins', '/signins?open=tailplane%2Fs-0000', '/network?tab=tailnets', '/network?tab=gateways', '/network?tab=routes&open=TailscaleService%2Fshop%2Fregistry', '/network?tab=groups', '/fleet', '/fleet?open=github%2Fglobex%2Fgh-nix', '/pools/github/acme/gh-nix', '/pools/github/globex/gh-nix', '/pools/github/acme/gh-nix?tab=config', '/pools/github/acme/gh-docker?tab=events', '/pools/github/acme/gh-nix?tab=metrics', '/runners/tailplane-runners/acme-gh-nix-a', '/fleet?tab=orgs', '/fleet?tab=orgs&open=acme', '/orgs/acme', '/orgs/initech', '/orgs/nobody', '/fleet?tab=holds', '/fleet?tab=holds&open=globex-freeze', '/fleet?tab=drift', '/fleet?tab=drift&open=d-labels', '/fleet?tab=forges', '/changes', ...(await changes()).map((c) => `/changes?open=${c.id}`), '/adapters', '/audit', '/settings'].filter((p) => new RegExp(process.env.VIEWS ?? '').test(p)) // VIEWS='^/orgs': some by themselves

// SHOTS=folder: pictures of every view, for people to look at.
for (const theme of process.env.SHOTS ? ['light', 'dark'] : [])
  for (const width of [1280, 360]) {
    const page = await open('/', { theme, width, height: width > 400 ? 860 : 740 })
    const shoot = (name) => page.screenshot({ path: `${process.env.SHOTS}/${name}-${theme}-${width}.png` })
    for (const path of pages) {
      await go(page, path)
      await shoot(path.replace(/open=c[0-9a-f]{16}/, (id) => `open_${pages.indexOf(path)}`).replace(/\W+/g, '_').replace(/^_|_$/g, '') || 'overview')
    }
    if (process.env.VIEWS) {
      await page.context().close()
      continue
    }
    await go(page, '/signins?q=erin&open=tailplane%2Fs-0005')
    await page.getByRole('button', { name: 'Revoke' }).last().click()
    await page.getByRole('textbox', { name: 'Reason' }).waitFor()
    await shoot('revoke')
    await go(page, '/fleet')
    await page.getByRole('button', { name: 'Pause…' }).click()
    await page.getByRole('dialog').getByRole('combobox', { name: 'What' }).selectOption('everything')
    await page.getByRole('dialog').getByRole('textbox', { name: 'Reason' }).fill('node upgrade')
    await shoot('freeze')
    await page.getByRole('dialog').getByRole('button', { name: 'Pause' }).click()
    await page.getByRole('textbox', { name: /Type PAUSE ALL/ }).waitFor()
    await shoot('freeze_all')
    await act('asked')
    await go(page, '/fleet')
    await shoot('held')
    await go(page, await (await fetch(process.env.ACTS + '/confirm')).json())
    await page.getByRole('textbox').waitFor()
    await shoot('confirm')
    await act('lifted')
    await go(page, '/changes')
    await page.getByRole('button', { name: 'Propose…' }).click()
    const propose = page.getByRole('dialog', { name: /^Propose|^What it would do/ })
    await propose.getByRole('combobox').selectOption('RunnerEnrollment acme')
    await shoot('propose_org')
    await propose.getByRole('combobox').selectOption('RunnerPool gh-nix')
    await propose.getByRole('textbox', { name: /^Largest/ }).fill('12')
    await shoot('propose')
    await propose.getByRole('button', { name: 'Preview' }).click()
    await propose.getByRole('textbox', { name: 'Reason' }).fill('the queue is long in the morning')
    await shoot('preview')
    await propose.getByRole('button', { name: 'Back' }).click()
    await propose.getByRole('textbox', { name: /^Smallest/ }).fill('99')
    await propose.getByRole('button', { name: 'Preview' }).click()
    await propose.getByText('would not take it').waitFor()
    await shoot('preview_refused')
    await act('pat')
    await go(page, `/changes?open=${(await changes()).find((c) => c.state === 'approved').id}`)
    await page.getByRole('button', { name: 'Merge' }).click()
    await shoot('merge')
    await go(page, '/fleet?tab=orgs')
    await page.getByRole('button', { name: 'Ask for runners…' }).click()
    const enroll = page.getByRole('dialog', { name: /Ask for runners|What comes of it|Offboard/ })
    await shoot('enroll')
    await enroll.getByRole('textbox', { name: 'Name here' }).fill('newco')
    await enroll.getByRole('combobox', { name: 'Forge' }).fill('github')
    await enroll.getByRole('textbox', { name: 'Pools' }).fill('gh-nix')
    await enroll.getByRole('textbox', { name: 'Reason' }).fill('their builds wait')
    await enroll.getByRole('button', { name: 'Preview' }).click()
    await enroll.getByRole('heading', { name: 'What comes of it' }).waitFor()
    await shoot('enroll_preview')
    await go(page, '/orgs/acme')
    await page.getByRole('button', { name: 'Offboard…' }).click()
    await enroll.getByRole('textbox', { name: 'Reason' }).fill('they have moved')
    await enroll.getByRole('button', { name: 'Preview' }).click()
    await enroll.getByRole('textbox', { name: /Type/ }).waitFor()
    await shoot('offboard')
    await act('alice')
    await go(page, '/')
    await page.keyboard.press('Control+k')
    await page.getByRole('combobox').waitFor()
    await shoot('palette')
    await act('mallory')
    await page.goto(base + '/clusters')
    await shoot('denied')
    await act('vic')
    await go(page, '/')
    await shoot('overview_of_one_organisation')
    await act('alice')
    await page.context().close()
  }

await check('PLANE-15_first_paint', async () => {
  const page = await open('/')
  await page.locator('.attention').waitFor()
  const [paint, bytes] = await page.evaluate(() => [
    performance.getEntriesByName('first-contentful-paint')[0]?.startTime,
    performance.getEntriesByType('resource').filter((r) => r.name.endsWith('.js')).reduce((n, r) => n + r.encodedBodySize, 0),
  ])
  must(bytes > 0 && bytes <= 150_000, `${bytes} bytes of JavaScript`)
  well(page)
  await page.context().close()
  return `first contentful paint after ${Math.round(paint)} ms; JavaScript ${bytes} bytes compressed`
})

await check('PLANE-14_axe', async () => {
  const page = await open('/', { bypass: true }) // axe writes into the page, which the policy would forbid
  await page.addInitScript(axe)
  const found = []
  const look = async (path, theme, runOnly) => {
    const r = await page.evaluate((runOnly) => window.axe.run(document, { runOnly, resultTypes: ['violations'] }), runOnly)
    for (const v of r.violations)
      if (v.impact === 'serious' || v.impact === 'critical')
        found.push(`${path} ${theme}: ${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.html + ' ' + n.any.map((a) => a.message).join(';')).join(' | ')}`)
  }
  for (const path of pages) {
    await page.emulateMedia({ colorScheme: 'light' })
    await go(page, path)
    await look(path, 'light', { type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] })
    await page.emulateMedia({ colorScheme: 'dark' })
    await look(path, 'dark', { type: 'rule', values: ['color-contrast', 'link-in-text-block'] }) // all that colours can change
  }
  await page.context().close()
  must(found.length === 0, found.join('\n'))
  return `${pages.length} views in two themes`
})

// 360 px is a small telephone; 320 px is 1,280 at 400 %.
await check('PLANE-14_small', async () => {
  const page = await open('/', { width: 360, height: 740 })
  const wide = []
  for (const path of pages) {
    await go(page, path)
    for (const width of [360, 320]) {
      await page.setViewportSize({ width, height: 740 })
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
      if (over > 0) wide.push(`${path} is ${over} px wider than ${width}`)
    }
  }
  await go(page, '/audit')
  const [table, head] = await page.evaluate(() => [document.querySelector('table'), document.querySelector('thead tr')].map((e) => [...(e.rows ?? [e])].map((r) => Math.round([...r.cells].reduce((n, c) => n + c.offsetWidth, 0)))))
  must(new Set(table.filter((n) => n > head[0] * 0.6)).size === 1 && head[0] > 280, `rows are ${[...new Set(table)]} px wide, the head ${head}`)
  await page.getByRole('button', { name: 'Pages' }).click()
  await page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'Adapters' }).click()
  await page.getByRole('heading', { level: 1, name: 'Adapters' }).waitFor()
  well(page)
  await page.context().close()
  must(wide.length === 0, wide.join('\n'))
})

await check('PLANE-14_landmarks_and_targets', async () => {
  const page = await open('/signins')
  await settled(page)
  const bad = await page.evaluate(() => {
    const bad = []
    if (document.querySelectorAll('h1').length !== 1) bad.push('there is not one h1')
    for (const el of ['header', 'nav', 'main']) if (!document.querySelector(el)) bad.push(`no ${el}`)
    for (const b of document.querySelectorAll('button, a[href], input')) {
      const r = b.getBoundingClientRect()
      if (r.width && !b.closest('p, td .clip > a') && !b.classList.contains('unseen') && !b.classList.contains('skip') && (r.width < 24 || r.height < 24)) bad.push(`${b.outerHTML.slice(0, 90)} is ${Math.round(r.width)}x${Math.round(r.height)}`)
    }
    if (!document.querySelector('th[scope=col][aria-sort]')) bad.push('no aria-sort')
    return bad
  })
  must(bad.length === 0, bad.join('\n'))
  await page.keyboard.press('Tab')
  await soon(async () => await page.evaluate(() => document.activeElement.textContent === 'Skip to the content'), async () => 'the first stop is not the skip link')
  await page.keyboard.press('Enter')
  await soon(async () => await page.evaluate(() => document.activeElement.id === 'content'), async () => 'the skip link does not skip')
  well(page)
  await page.context().close()
})

await check('live_and_under_the_pointer', async () => {
  const page = await open('/clusters')
  await settled(page)
  const row = page.locator('tr.row', { hasText: 'prod-us' })
  await row.getByText('Alive').waitFor()
  await act('dead')
  await row.getByText('Dead').waitFor() // told, not asked for
  await page.locator('tbody tr.row').first().hover()
  const before = await page.locator('tbody tr.row th').allInnerTexts()
  await act('new')
  await page.getByRole('button', { name: /^1 update/ }).waitFor()
  must((await page.locator('tbody tr.row th').allInnerTexts()).join() === before.join(), 'rows moved under the pointer')
  await page.getByRole('button', { name: /^1 update/ }).click()
  await page.locator('tr.row', { hasText: 'aaa-new' }).waitFor()
  await page.locator('h1').hover()
  await act('gone')
  await page.locator('tr.row', { hasText: 'aaa-new' }).waitFor({ state: 'detached' })
  await act('back')
  await row.getByText('Alive').waitFor()
  well(page)
  await page.context().close()
})

await check('PLANE-12_away_and_back', async () => {
  const page = await open('/clusters')
  await settled(page)
  await act('leave')
  await page.locator('.link.reconnecting, .link.stale').waitFor()
  must((await page.locator('tr.row').count()) === 6, 'what was known is gone')
  await act('dead') // while nobody listens
  await act('serve')
  await page.locator('tr.row', { hasText: 'prod-us' }).getByText('Dead').waitFor()
  await page.locator('.link.live').waitFor()
  await act('back')
  await page.locator('tr.row', { hasText: 'prod-us' }).getByText('Alive').waitFor()
  page.wrong = page.wrong.filter((w) => !/ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET/.test(w))
  well(page)
  await page.context().close()
})

await check('keys', async () => {
  const page = await open('/')
  await settled(page)
  await page.keyboard.press('g')
  await page.keyboard.press('c')
  await page.waitForURL(base + '/clusters')
  await page.locator('h1:focus', { hasText: 'Clusters' }).waitFor()
  await soon(async () => (await page.title()) === 'Clusters · Tailplane', async () => await page.title())
  await page.locator('tr.row').first().waitFor()
  await page.keyboard.press('j')
  await page.keyboard.press('j')
  await page.keyboard.press('k')
  await page.keyboard.press('j')
  await page.keyboard.press('Enter')
  const sheet = page.getByRole('dialog')
  await sheet.getByRole('heading', { name: 'edge-sg' }).waitFor()
  await soon(async () => page.url().endsWith('?open=edge-sg'), async () => page.url())
  await page.keyboard.press('Escape')
  await sheet.waitFor({ state: 'detached' })
  await soon(async () => await page.evaluate(() => document.activeElement?.textContent?.includes('edge-sg')), async () => 'the focus did not come back to the row')
  await page.keyboard.press('/')
  await page.keyboard.type('health:alive zz g c')
  await soon(async () => page.url() === `${base}/clusters?q=health%3Aalive+zz+g+c`, async () => page.url())
  await page.getByText(/^None of \d clusters matches/).waitFor()
  await page.getByRole('searchbox').fill('staging')
  await page.getByText('1 of 6 clusters').waitFor()
  await page.goBack()
  await page.waitForURL(base + '/')
  await page.locator('h1').focus()
  await page.keyboard.press('?')
  await page.getByRole('dialog', { name: 'Keys' }).waitFor()
  await page.keyboard.press('Escape')
  await page.getByRole('dialog', { name: 'Keys' }).waitFor({ state: 'detached' })
  await page.keyboard.press('Control+k')
  await page.getByRole('combobox').fill('web-7')
  await page.getByRole('option', { name: /web-7/ }).waitFor()
  await page.keyboard.press('Enter')
  await page.getByRole('dialog').getByRole('heading', { name: 'web-7' }).waitFor()
  await page.keyboard.press('Escape')
  await page.goto(base + '/settings')
  await page.getByRole('checkbox', { name: 'Single keys act' }).uncheck()
  await page.locator('h1').focus()
  await page.keyboard.press('g')
  await page.keyboard.press('c')
  must(page.url() === base + '/settings', 'keys act though they are off')
  well(page)
  await page.context().close()
})

await check('revoke_by_keyboard', async () => {
  const page = await open('/signins?q=frank')
  await settled(page)
  await page.getByRole('button', { name: 'Revoke the sign-in of frank@acme.dev on frank-nuc' }).focus()
  await page.keyboard.press('Enter')
  const dialog = page.getByRole('dialog')
  await dialog.getByRole('heading', { name: 'Revoke this sign-in?' }).waitFor()
  await dialog.getByRole('button', { name: 'Revoke' }).focus()
  await page.keyboard.press('Enter')
  await dialog.getByText('Say why').waitFor()
  await soon(async () => await page.evaluate(() => document.activeElement.getAttribute('aria-invalid') === 'true'), async () => 'the field is not marked')
  await page.keyboard.type('the laptop was lost')
  await page.keyboard.press('Tab')
  await page.keyboard.press('Tab')
  await page.keyboard.press('Enter')
  await dialog.getByRole('heading', { name: 'Revoked' }).waitFor()
  const revoked = await (await fetch(process.env.ACTS + '/revoked')).json()
  must(revoked.join() === 'tailplane/s-0009: the laptop was lost', revoked.join())
  await page.keyboard.press('Escape')
  await page.getByText(/^None of 7 sign-ins/).waitFor()
  well(page)
  await page.context().close()
})

await check('PLANE-10_pause_by_keyboard', async () => {
  const page = await open('/')
  await settled(page)
  await page.keyboard.press('g')
  await page.keyboard.press('f')
  await page.waitForURL(base + '/fleet')
  await page.locator('h1:focus', { hasText: 'Fleet' }).waitFor()
  const holds = async () => (await (await fetch(process.env.ACTS + '/holds')).json()).sort().join('; ')
  const focused = async (name) => await soon(async () => (await page.evaluate(() => document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.textContent ?? '')).includes(name), async () => `the focus is not on ${name}`)
  // One pool: a reason, and no phrase.
  const dialog = page.getByRole('dialog')
  await page.getByRole('button', { name: 'Pause gh-nix of acme' }).focus()
  await page.keyboard.press('Enter')
  await dialog.getByRole('heading', { name: 'Pause gh-nix of acme?' }).waitFor()
  await dialog.getByRole('button', { name: 'Pause' }).focus()
  await page.keyboard.press('Enter')
  await dialog.getByText('Say why').waitFor()
  await soon(async () => await page.evaluate(() => document.activeElement.getAttribute('aria-invalid') === 'true'), async () => 'the field is not marked')
  await page.keyboard.type('a flaky image')
  await page.keyboard.press('Tab')
  await page.keyboard.press('Tab')
  await page.keyboard.press('Enter')
  await dialog.getByRole('heading', { name: 'The hold is made' }).waitFor()
  must((await holds()) === 'pool gh-nix of acme by alice@acme.dev: a flaky image; pool gh-nix of globex by gus@globex.dev: release week', await holds())
  await page.keyboard.press('Escape')
  await dialog.waitFor({ state: 'detached' })
  // Everything: the phrase is typed, and anything else does nothing.
  await page.getByRole('button', { name: 'Pause…' }).focus()
  await page.keyboard.press('Enter')
  await dialog.getByRole('combobox', { name: 'What' }).selectOption('everything')
  await dialog.getByRole('textbox', { name: 'Reason' }).fill('node upgrade')
  await page.keyboard.press('Tab')
  await page.keyboard.press('Tab')
  await focused('Pause')
  await page.keyboard.press('Enter')
  await dialog.getByRole('heading', { name: 'Pause everything?' }).waitFor()
  await dialog.getByText('5 workloads').waitFor()
  await soon(async () => await page.evaluate(() => document.activeElement.matches('input.phrase')), async () => 'the focus is not on the phrase')
  await page.keyboard.type('pause all')
  await page.keyboard.press('Enter')
  await dialog.getByText('That is not the phrase.').waitFor()
  must(!(await holds()).includes('everything'), 'it was done without the phrase')
  await dialog.getByRole('textbox').fill('PAUSE ALL')
  await page.keyboard.press('Enter')
  await dialog.getByRole('heading', { name: 'The hold is made' }).waitFor()
  await page.keyboard.press('Escape')
  await page.locator('.notice', { hasText: 'Held: everything.' }).waitFor()
  // And lifted, with its phrase too.
  await page.goto(base + '/fleet?tab=holds')
  await settled(page)
  await page.getByRole('button', { name: 'Lift the hold of everything' }).focus()
  await page.keyboard.press('Enter')
  await dialog.getByRole('textbox', { name: 'Reason' }).fill('the upgrade is done')
  await dialog.getByRole('button', { name: 'Lift' }).focus()
  await page.keyboard.press('Enter')
  await soon(async () => await page.evaluate(() => document.activeElement.matches('input.phrase')), async () => 'the focus is not on the phrase')
  await page.keyboard.type('LIFT ALL')
  await page.keyboard.press('Enter')
  await dialog.getByRole('heading', { name: 'Lifted' }).waitFor()
  must(!(await holds()).includes('everything'), await holds())
  await page.keyboard.press('Escape')
  await dialog.waitFor({ state: 'detached' })
  await page.getByText('2 holds', { exact: true }).waitFor() // rows move up
  await page.getByRole('button', { name: 'Lift the hold of gh-nix of acme' }).click()
  await dialog.getByRole('heading', { name: 'Lift the hold of gh-nix of acme?' }).waitFor()
  await dialog.getByRole('textbox', { name: 'Reason' }).fill('mended')
  await dialog.getByRole('button', { name: 'Lift' }).click()
  await dialog.getByRole('heading', { name: 'Lifted' }).waitFor()
  must((await holds()) === 'pool gh-nix of globex by gus@globex.dev: release week', await holds())
  await page.keyboard.press('Escape')
  page.wrong = page.wrong.filter((w) => !/status of 428/.test(w)) // the browser says of each refusal that it was one
  well(page)
  await page.context().close()
})

await check('jobs_that_were_given_and_cannot_start', async () => {
  const page = await open('/fleet', { width: 1440 })
  await settled(page)
  const row = (name) => page.locator('tr.row', { hasText: name })
  await row('gh-nix globex').getByText('2 stranded').waitFor()
  await row('gl-docker').getByText('How many jobs were given to it is not known: only GitHub says so').waitFor({ state: 'attached' }) // and it is no 0
  await row('gl-nix').getByText('nobody has said anything of it').waitFor({ state: 'attached' })
  await row('gh-docker').locator('td', { hasText: /^3$/ }).waitFor()
  await page.setViewportSize({ width: 360, height: 740 }) // no room for a column: the name says so
  must((await row('gh-nix globex').getByText('2 jobs stranded').isVisible()) && !(await row('gh-docker').getByText('stranded').count()), 'a small page does not tell of stranded jobs')
  await row('gh-nix globex').locator('.open').click()
  await page.getByRole('dialog').getByText('2 jobs are stranded').waitFor()
  await go(page, '/pools/github/globex/gh-nix')
  await page.getByText('GitHub gave it 3 jobs').waitFor()
  await page.locator('.notice', { hasText: 'Lift what holds it, and they start' }).getByRole('link', { name: 'globex-freeze' }).click()
  await page.waitForURL(base + '/fleet?tab=holds&open=globex-freeze')
  await go(page, '/pools/gitlab/initech/gl-nix')
  await page.getByText('How many jobs were given to it is not known').waitFor()
  well(page)
  await page.context().close()
})

await check('what_somebody_else_keeps', async () => {
  const page = await open('/fleet')
  await settled(page)
  const kept = page.getByRole('listitem').filter({ hasText: 'old-runners/nix' })
  await kept.getByText('4 busy, 2 idle, 0 to no bound').waitFor()
  await page.getByRole('listitem').filter({ hasText: 'older' }).getByText('? busy, ? idle, ? to ?').waitFor() // and no 0
  await kept.getByRole('link', { name: 'acme' }).click()
  await page.locator('h1:focus', { hasText: 'acme' }).waitFor()
  await page.getByRole('heading', { name: 'Kept by somebody else' }).waitFor()
  await page.getByRole('listitem').filter({ hasText: 'older' }).getByText('Held').waitFor()
  await go(page, '/pools/github/acme/old-nix')
  await kept.waitFor()
  await go(page, '/orgs/globex')
  must((await page.getByText('Kept by somebody else').count()) === 0, 'globex has what acme has')
  well(page)
  await page.context().close()
})

await check('drift_is_ignored_for_a_while', async () => {
  const page = await open('/fleet?tab=drift')
  await settled(page)
  await page.getByRole('button', { name: 'Look again' }).click()
  await page.getByText('It is compared anew now.').waitFor()
  await go(page, '/fleet?tab=drift&open=d-labels')
  const dialog = page.getByRole('dialog', { name: /gnore/ })
  await page.getByRole('button', { name: 'Ignore…' }).click()
  await dialog.getByRole('heading', { name: 'Ignore this drift for a while?' }).waitFor()
  await dialog.getByRole('button', { name: 'Ignore' }).click()
  await dialog.getByText('Say why').waitFor()
  await dialog.getByRole('combobox').selectOption('A week')
  await dialog.getByRole('textbox', { name: 'Reason' }).fill('a trial')
  await dialog.getByRole('button', { name: 'Ignore' }).click()
  await dialog.getByRole('heading', { name: 'Ignored' }).waitFor()
  await page.keyboard.press('Escape')
  await dialog.waitFor({ state: 'detached' })
  await page.getByText('Ignored until').waitFor()
  well(page)
  await page.context().close()
})

await check('a_hold_ends_at_another_time', async () => {
  const page = await open('/fleet?tab=holds&open=globex-freeze')
  await settled(page)
  const dialog = page.getByRole('dialog', { name: /end/ })
  await page.getByRole('button', { name: 'Change the end' }).click()
  await dialog.getByRole('heading', { name: 'When does the hold of gh-nix of globex end?' }).waitFor()
  await dialog.getByRole('button', { name: 'Change the end' }).click()
  await dialog.getByText('Say why').waitFor()
  await dialog.getByRole('combobox').selectOption('In a week')
  await dialog.getByRole('textbox', { name: 'Reason' }).fill('the release slipped')
  await dialog.getByRole('button', { name: 'Change the end' }).click()
  await dialog.getByRole('heading', { name: 'The end is changed' }).waitFor()
  await dialog.getByText('It ends by itself:').waitFor()
  await page.keyboard.press('Escape')
  await dialog.waitFor({ state: 'detached' })
  await page.getByText('in 6d').or(page.getByText('in 7d')).first().waitFor()
  well(page)
  await page.goto(base + '/fleet?tab=drift&open=d-held')
  await page.getByRole('link', { name: 'globex-freeze' }).click()
  await page.getByRole('heading', { name: 'gh-nix of globex' }).waitFor()
  well(page)
  await page.context().close()
})

await check('a_pool_its_runners_and_their_logs', async () => {
  const page = await open('/fleet?open=github%2Facme%2Fgh-nix')
  await settled(page)
  await page.getByRole('link', { name: /^All of it/ }).click()
  await page.locator('h1:focus', { hasText: 'gh-nix of acme' }).waitFor()
  await page.getByRole('cell', { name: 'build' }).waitFor()
  must(!/globex/.test(await page.innerText('main')), 'runners of somebody else')
  await page.getByRole('link', { name: 'Config' }).click()
  await page.getByText('It is not known').waitFor() // nobody has told this board what the pool says
  await page.getByRole('link', { name: 'Events' }).click()
  await page.locator('.events').getByText('3 Insufficient cpu').waitFor()
  await page.getByRole('link', { name: 'Metrics' }).click()
  await page.locator('canvas').first().waitFor()
  await page.getByText(/: now \d/).first().waitFor()
  await page.getByRole('radio', { name: 'A day' }).check()
  await page.getByText('As a table').first().click()
  await page.getByRole('cell', { name: 'unknown' }).first().waitFor() // a gap is no zero
  await page.getByRole('link', { name: 'Runners', exact: true }).click()
  await page.getByRole('link', { name: 'acme-gh-nix-a' }).click()
  await page.locator('h1:focus', { hasText: 'acme-gh-nix-a' }).waitFor()
  await page.getByText('acme/shop').waitFor()
  await page.getByRole('button', { name: 'Read', exact: true }).click()
  const log = page.getByLabel('Log of acme-gh-nix-a')
  await log.getByText('Running job: build').waitFor()
  must(!(await log.innerText()).includes('\x1b') && (await log.locator('img').count()) === 0 && !(await page.evaluate(() => window.hurt)), await log.innerText())
  await page.getByRole('button', { name: 'Follow' }).click()
  await log.getByText('more').waitFor()
  await page.getByRole('button', { name: 'Stop following' }).click()
  await page.getByRole('button', { name: 'Follow' }).waitFor()
  well(page)
  await act('vic')
  await page.goto(base + '/runners/tailplane-runners/acme-gh-nix-a')
  await page.getByText('Your role does not allow to read logs of acme.').waitFor()
  must(await page.getByRole('button', { name: 'Read', exact: true }).isDisabled(), 'a viewer may read logs')
  await page.goto(base + '/runners/tailplane-runners/globex-gh-nix-d')
  await page.getByText(/There is no such runner/).waitFor()
  page.wrong = page.wrong.filter((w) => !/status of 404/.test(w))
  well(page)
  await act('alice')
  await page.context().close()
})

await check('MC-02_confirm_in_the_browser', async () => {
  await act('asked')
  const page = await open(await (await fetch(process.env.ACTS + '/confirm')).json())
  await settled(page)
  await page.getByText("the job's log says so").waitFor()
  await page.getByRole('textbox', { name: /Type LIFT ALL/ }).fill('LIFT ALL')
  await page.keyboard.press('Enter')
  await page.getByRole('heading', { name: 'The code' }).waitFor()
  await page.getByText(/^[A-Z2-7]{4}-[A-Z2-7]{4}-[A-Z2-7]{2}$/).waitFor()
  await act('lifted')
  well(page)
  await page.goto(base + '/confirm/0123')
  await page.getByText('Nothing of yours with this id waits to be confirmed.').waitFor()
  await page.context().close()
})

const file = async () => await (await fetch(process.env.ACTS + '/file')).json()
const proposing = (page) => page.getByRole('dialog', { name: /^Propose a change|^What it would do|^It is proposed/ })

await check('PLANE-11_propose_by_keyboard', async () => {
  const page = await open('/')
  await settled(page)
  await page.keyboard.press('g')
  await page.keyboard.press('h')
  await page.locator('h1:focus', { hasText: 'Changes' }).waitFor()
  await page.getByText('2 changes').waitFor()
  const before = await file()
  const dialog = proposing(page)
  await page.getByRole('button', { name: 'Propose…' }).focus()
  await page.keyboard.press('Enter')
  await dialog.getByRole('button', { name: 'Preview' }).focus()
  await page.keyboard.press('Enter')
  await dialog.getByText('Choose what is changed.').waitFor()
  await soon(async () => await page.evaluate(() => document.activeElement.id === 'propose-what'), async () => 'the focus is not on the choice')
  await dialog.getByRole('combobox').selectOption('RunnerPool gh-nix')
  await dialog.getByRole('textbox', { name: /^Largest/ }).focus()
  await page.keyboard.press('Enter')
  await dialog.getByText('Change something first.').waitFor()
  // What the API server would not take cannot be proposed.
  await dialog.getByRole('textbox', { name: /^Smallest/ }).fill('99')
  await page.keyboard.press('Enter')
  await dialog.getByText('Dry run: the API server would not take it.').waitFor()
  must((await dialog.getByRole('button', { name: 'Propose' }).count()) === 0, 'it can be proposed')
  await dialog.getByRole('button', { name: 'Back' }).focus()
  await page.keyboard.press('Enter')
  // A field that the kind does not have, in a patch.
  await dialog.getByRole('radio', { name: 'A patch' }).check()
  await dialog.getByRole('textbox', { name: /^Merge patch/ }).fill('{"scalling": 1')
  await dialog.getByRole('button', { name: 'Preview' }).click()
  await dialog.getByText('It is not JSON').waitFor()
  await dialog.getByRole('textbox', { name: /^Merge patch/ }).fill('{"scalling": {"max": 12}}')
  await dialog.getByRole('button', { name: 'Preview' }).click()
  await dialog.getByText('scalling').first().waitFor()
  await dialog.getByText('would not take it').waitFor()
  await dialog.getByRole('button', { name: 'Back' }).click()
  // What it would: the real file, with its comment, and the sign in the text.
  await dialog.getByRole('radio', { name: 'Fields' }).check()
  await dialog.getByRole('textbox', { name: /^Smallest/ }).fill('0')
  await dialog.getByRole('textbox', { name: /^Largest/ }).fill('12')
  await page.keyboard.press('Enter')
  await dialog.getByText('Dry run: the API server would take it.').waitFor()
  await soon(async () => await page.evaluate(() => document.activeElement.matches('dialog h2')), async () => 'the focus is not on what it would do')
  const [added, removed] = await Promise.all(['ins', 'del'].map((e) => dialog.locator(e).allInnerTexts()))
  must(added.join().trim() === '+    max: 12 # of each organisation' && removed.join().trim() === '-    max: 8    # of each organisation', `${added} ${removed}`)
  await dialog.getByText('1 line added, 1 removed').waitFor()
  await dialog.getByRole('button', { name: 'Propose' }).focus()
  await page.keyboard.press('Enter')
  await dialog.getByText('Say why').waitFor()
  await soon(async () => await page.evaluate(() => document.activeElement.getAttribute('aria-invalid') === 'true'), async () => 'the field is not marked')
  // The file moves meanwhile: nothing is proposed of what it was.
  await act('edit')
  await page.keyboard.type('the queue is long')
  await dialog.getByRole('button', { name: 'Propose' }).focus()
  await page.keyboard.press('Enter')
  await dialog.getByRole('alert').getByText('The file is another one').waitFor()
  await dialog.getByRole('button', { name: 'Preview anew' }).focus()
  await page.keyboard.press('Enter')
  await dialog.getByText('the queue is long').waitFor({ state: 'attached' }).catch(() => {})
  await dialog.getByRole('alert').waitFor({ state: 'detached' })
  await dialog.getByRole('textbox', { name: 'Title' }).fill('More nix runners')
  await dialog.getByRole('button', { name: 'Propose' }).focus()
  await page.keyboard.press('Enter')
  await dialog.getByRole('heading', { name: 'It is proposed' }).waitFor()
  must((await file()) === before + '# edited\n', 'the file was changed')
  await dialog.getByRole('link', { name: 'Look at it' }).focus()
  await page.keyboard.press('Enter')
  const sheet = page.getByRole('dialog', { name: 'More nix runners' })
  await sheet.getByText('Somebody who runs the platform has to approve it').waitFor()
  for (const name of ['Approve', 'Merge']) must(await sheet.getByRole('button', { name }).isDisabled(), `an operator may ${name}`)
  await sheet.getByText('Your role does not allow to approve it.').waitFor()
  await page.keyboard.press('Escape')
  await page.getByText('3 changes').waitFor()
  // The file moves again: who looks is told.
  await act('edit')
  await page.locator('tr.row', { hasText: 'More nix runners' }).getByText('its file has changed').waitFor({ state: 'attached' })
  page.wrong = page.wrong.filter((w) => !/status of 409/.test(w))
  well(page)
  await page.context().close()
})

await check('PLANE-11_approve_merge_applied', async () => {
  await act('pat')
  const page = await open('/changes')
  const sheet = page.getByRole('dialog', { name: 'More nix runners' })
  const dialog = page.getByRole('dialog', { name: /this change\?$|^Approved$|^Merged$|^Given up$/ })
  const show = async (id) => {
    await page.goto(`${base}/changes/${id}`) // as pull requests refer to it
    await page.waitForURL(`${base}/changes?open=${id}`)
    await settled(page)
  }
  const decide = async (word, why, done) => {
    await soon(async () => await sheet.getByRole('button', { name: word }).isEnabled(), async () => `nobody may ${word}: ${await sheet.innerText()}`)
    await sheet.getByRole('button', { name: word }).focus()
    await page.keyboard.press('Enter')
    await dialog.getByRole('heading', { name: `${word} this change?` }).waitFor()
    await dialog.getByRole('button', { name: word }).focus()
    await page.keyboard.press('Enter')
    await dialog.getByText('Say why').waitFor()
    await page.keyboard.type(why)
    await dialog.getByRole('button', { name: word }).focus()
    await page.keyboard.press('Enter')
    await dialog.getByRole('heading', { name: done, exact: true }).waitFor()
    await page.keyboard.press('Escape')
    await dialog.waitFor({ state: 'detached' })
  }
  // One whose file has moved is given up, and proposed anew.
  await show((await changes()).find((c) => c.title === 'More nix runners').id)
  await sheet.getByText('The file has changed since.').waitFor()
  await decide('Give up', 'the file has changed', 'Given up')
  await sheet.getByText('Not merged: it was given up.').waitFor()
  await act('alice')
  const asked = await fetch(base + '/api/v1/changes', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ kind: 'RunnerPool', name: 'gh-nix', patch: { scaling: { max: 16 } }, title: 'More nix runners', reason: 'the queue is long' }) })
  must(asked.ok, await asked.clone().text())
  await act('pat')
  await show((await asked.json()).data.id)
  must(await sheet.getByRole('button', { name: 'Merge' }).isDisabled(), 'it may be merged without an approval')
  await decide('Approve', 'the nodes carry it', 'Approved')
  await sheet.getByText('Approved by pat@platform.dev').waitFor()
  // Another commit: the approval is void, and nobody decides about what they have not seen.
  await act('push')
  await sheet.getByText('There is another commit now.').waitFor()
  for (const name of ['Approve', 'Merge']) must(await sheet.getByRole('button', { name }).isDisabled(), `${name} of a commit that was not shown`)
  await sheet.getByText('Somebody who runs the platform has to approve it').waitFor()
  await sheet.getByRole('button', { name: 'Show it as it is now' }).focus()
  await page.keyboard.press('Enter')
  await sheet.getByText('Somebody has pushed at the forge.').waitFor()
  must(await sheet.getByRole('button', { name: 'Merge' }).isDisabled(), 'it may be merged with an approval of another commit')
  await decide('Approve', 'read at the forge', 'Approved')
  await decide('Merge', 'a quiet moment', 'Merged')
  await sheet.getByText('Not applied yet').waitFor()
  must((await file()).includes('budget: 400'), await file())
  await act('apply')
  await sheet.getByText('Applied: the cluster has it').waitFor()
  await soon(async () => (await sheet.getByRole('button', { name: 'Merge' }).count()) === 0, async () => 'it may be merged again')
  page.wrong = page.wrong.filter((w) => !/status of 409/.test(w))
  well(page)
  await page.context().close()
  await act('alice')
})

await check('PLANE-04_changes_for_everybody', async () => {
  const seen = {}
  for (const who of ['alice', 'amy', 'gus', 'vic', 'pat']) {
    await act(who)
    const page = await open('/changes')
    await settled(page)
    await page.locator('.panel .state, .panel tr.row').first().waitFor()
    const propose = (await page.getByRole('button', { name: 'Propose…' }).count()) > 0
    const rows = await page.locator('tbody tr.row th').allInnerTexts()
    let may = ''
    if (rows.some((r) => r.includes('Ann administers'))) {
      await page.locator('tr.row .open', { hasText: 'Ann administers' }).click()
      const sheet = page.getByRole('dialog', { name: /^Ann administers/ })
      await sheet.getByRole('button', { name: 'Approve' }).waitFor()
      for (const name of ['Approve', 'Merge', 'Give up']) if (await sheet.getByRole('button', { name }).isEnabled()) may += ` ${name}`
      if (who === 'amy') await sheet.getByText('You wrote some of it.').waitFor()
    }
    seen[who] = `${rows.length}${propose ? ' Propose' : ''}:${may}`
    well(page)
    await page.context().close()
  }
  await act('alice')
  const want = { alice: '4 Propose:', amy: '1 Propose: Merge Give up', gus: '0 Propose:', vic: '1:', pat: '4 Propose: Approve Merge Give up' }
  must(JSON.stringify(seen) === JSON.stringify(want), JSON.stringify(seen))
})

await check('PLANE-06_the_forge_is_away', async () => {
  await act('amy')
  const page = await open('/fleet?tab=orgs&open=acme')
  await settled(page)
  const sheet = page.getByRole('dialog', { name: 'acme' })
  await sheet.getByRole('link', { name: 'Ann administers acme too' }).waitFor()
  await sheet.getByRole('button', { name: 'Propose a change…' }).click()
  const dialog = proposing(page)
  await dialog.getByRole('textbox', { name: 'Quota: CPU' }).fill('64')
  await act('away')
  await dialog.getByRole('button', { name: 'Preview' }).click()
  await dialog.getByRole('alert').getByText('The repository of the configuration').waitFor()
  await act('there')
  await dialog.getByRole('button', { name: 'Preview' }).click()
  await dialog.getByText('A change of this object is open already').waitFor()
  await dialog.locator('ins', { hasText: 'cpu' }).waitFor()
  page.wrong = page.wrong.filter((w) => !/status of 50/.test(w))
  well(page)
  await page.context().close()
  await act('alice')
})

await check('PLANE-09_one_organisation', async () => {
  await act('vic')
  const page = await open('/fleet')
  await settled(page)
  await page.getByText('2 pools').waitFor()
  must((await page.locator('tbody').getByRole('button', { name: /^(Pause|Resume|Lift)/ }).count()) + (await page.getByRole('button', { name: 'Pause…' }).count()) === 0, 'a viewer may pause')
  for (const tab of ['runners', 'orgs', 'drift', 'holds', 'forges']) {
    await go(page, `/fleet?tab=${tab}`)
    must(!/globex|initech|release week|gitlab/.test(await page.innerText('main')), `${tab}: ${await page.innerText('main')}`)
  }
  await page.goto(base + '/fleet?tab=holds')
  await page.getByRole('heading', { name: 'No holds' }).waitFor()
  well(page)
  await page.context().close()
  await act('alice')
})

await check('PLANE-06_a_source_that_is_down', async () => {
  const page = await open('/signins')
  await settled(page)
  await act('down')
  await page.getByText('kubernetes is down.').waitFor()
  must((await page.locator('tr.row').count()) === 7, 'what was known is gone')
  await go(page, '/settings')
  await page.getByText('The API server does not answer.').waitFor()
  await act('up')
  await page.getByText('The API server does not answer.').waitFor({ state: 'detached' })
  well(page)
  await page.context().close()
})

await check('preferences_last', async () => {
  const page = await open('/settings', { theme: 'light' })
  await page.getByRole('radio', { name: 'Dark' }).check()
  const dark = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor)
  const colour = await dark()
  await page.reload()
  await settled(page)
  await soon(async () => (await dark()) === colour && colour !== 'rgb(246, 247, 249)', async () => colour)
  await page.getByRole('radio', { name: 'UTC' }).check()
  await go(page, '/signins?open=tailplane%2Fs-0000')
  await page.getByRole('dialog').getByText(/UTC/).first().waitFor()
  well(page)
  await page.context().close()
})

await check('audit_filter_and_export', async () => {
  const page = await open('/audit?verb=signins.revoke')
  await settled(page)
  await page.locator('tr.row', { hasText: 'signins.revoke' }).first().waitFor()
  await soon(async () => (await page.locator('tr.row').count()) === 1, async () => 'the filter does not filter')
  const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Export JSONL' }).click()])
  const lines = readFileSync(await download.path(), 'utf8').trim().split('\n').map((l) => JSON.parse(l))
  must(lines.length === 1 && lines[0].verb === 'signins.revoke' && lines[0].reason === 'the laptop was lost', JSON.stringify(lines))
  await page.locator('tr.row .open').click()
  await page.getByRole('dialog').getByText('the laptop was lost').waitFor()
  well(page)
  await page.context().close()
})

/** A dialog about an organisation, by keyboard only: fill says what is written where, then Preview. */
async function matter(page, button, fill) {
  const dialog = page.locator('dialog[open]')
  await page.getByRole('button', { name: button }).focus()
  await page.keyboard.press('Enter')
  await dialog.getByRole('button', { name: 'Preview' }).focus()
  await page.keyboard.press('Enter')
  await dialog.locator('[aria-invalid="true"]').first().waitFor() // nothing is asked of the server
  for (const [name, text] of Object.entries(fill)) {
    await dialog.getByLabel(name).focus()
    await page.keyboard.press('Control+a')
    await page.keyboard.type(text)
  }
  await dialog.getByRole('button', { name: 'Preview' }).focus()
  await page.keyboard.press('Enter')
  await dialog.getByRole('heading', { name: 'What comes of it' }).waitFor()
  await soon(async () => await page.evaluate(() => document.activeElement.tagName === 'H2'), async () => 'the focus is not on the heading')
  return dialog
}
const press = async (page, dialog, name) => {
  await dialog.getByRole('button', { name, exact: true }).focus()
  await page.keyboard.press('Enter')
}

await check('PLANE-11_enroll_by_pull_request', async () => {
  const page = await open('/orgs/newco')
  await settled(page)
  await page.getByRole('heading', { name: 'There is no newco, or you may not see it' }).waitFor()
  must((await page.getByRole('button', { name: 'Ask for runners…' }).count()) === 0, 'an operator may ask')
  await page.context().close()
  await act('pat')
  const mine = await open('/orgs/newco')
  await settled(mine)
  const dialog = await matter(mine, 'Ask for runners…', { 'Name here': 'newco', Forge: 'github', Pools: 'gh-nix', Owners: 'nora@newco.dev', Reason: 'their builds wait' })
  await dialog.locator('ins', { hasText: 'configURL: https://github.com/newco' }).waitFor()
  await dialog.getByText('It becomes a pull request').waitFor()
  must(!(await changes()).some((c) => c.name === 'newco'), 'a preview proposes')
  await press(mine, dialog, 'Ask')
  await dialog.getByRole('heading', { name: 'It is proposed' }).waitFor()
  const made = (await changes()).find((c) => c.name === 'newco')
  must(made.proposer === 'pat@platform.dev' && made.state === 'open' && made.reason === 'their builds wait', JSON.stringify(made))
  await mine.keyboard.press('Escape')
  await mine.getByText('A change of it is open').waitFor()
  well(mine)
  await mine.context().close()
  await act('alice')
})

await check('PL-06_enroll_by_plane', async () => {
  await act('byplane')
  await act('amy')
  const page = await open('/orgs/acme')
  await settled(page)
  let dialog = await matter(page, 'Rotate the credential…', { Reason: 'a laptop was lost' })
  await dialog.getByText('for those who run the platform: your role allows to ask for it').waitFor()
  await press(page, dialog, 'Rotate')
  await dialog.getByRole('heading', { name: 'Those who run the platform are asked' }).waitFor()
  await page.keyboard.press('Escape')
  await page.getByText('amy@acme.dev asks to rotate its credential').waitFor()
  await act('pat')
  await go(page, '/orgs/acme')
  dialog = await matter(page, 'Rotate the credential…', { Reason: 'amy has lost a laptop' })
  await dialog.getByText('It is done at once').waitFor()
  await press(page, dialog, 'Rotate')
  await dialog.getByRole('heading', { name: 'It is done' }).waitFor()
  await page.keyboard.press('Escape')
  await page.getByText('Another one was asked for').waitFor()
  must((await page.getByText('amy@acme.dev asks').count()) === 0, 'it is still asked for')

  // Who asked for an organisation does not approve it, and somebody else does.
  await go(page, '/orgs/hooli')
  dialog = await matter(page, 'Ask for runners…', { 'Name here': 'hooli', Forge: 'github', Pools: 'gh-nix', Owners: 'hal@hooli.dev', Reason: 'their builds wait' })
  await dialog.getByText('https://github.com/hooli').waitFor()
  await press(page, dialog, 'Ask')
  await dialog.getByRole('heading', { name: 'It is done' }).waitFor()
  await page.keyboard.press('Escape')
  await page.getByText('Approve: You wrote some of it.').waitFor()
  must(await page.getByRole('button', { name: 'Approve…' }).isDisabled(), 'one approves what one asked for')
  await act('paula')
  await go(page, '/orgs/hooli')
  dialog = await matter(page, 'Approve…', { Reason: 'they share our budget' })
  await dialog.getByText('pat@platform.dev').waitFor()
  await press(page, dialog, 'Approve')
  await dialog.getByRole('heading', { name: 'It is approved' }).waitFor()
  await page.keyboard.press('Escape')
  await page.getByText('Approved by paula@platform.dev').waitFor()

  // An end takes its phrase.
  dialog = await matter(page, 'Offboard…', { Reason: 'they have moved' })
  for (const [typed, what] of [['OFFBOARD acme', 'That is not the phrase.'], ['OFFBOARD hooli', 'It is done']]) {
    await dialog.getByLabel('Type OFFBOARD hooli to go on').fill(typed)
    await press(page, dialog, 'Offboard')
    await dialog.getByText(what, { exact: true }).waitFor()
  }
  await page.keyboard.press('Escape')
  await page.getByText('The last jobs run.').waitFor()
  must(await page.getByRole('button', { name: 'Offboard…' }).isDisabled(), 'it ends twice')
  await page.getByRole('listitem').filter({ hasText: 'Drain' }).filter({ hasText: 'now' }).waitFor()
  well(page)
  await page.context().close()
  await act('alice')
})

await check('PL-04_hostile_names', async () => {
  await act('hostile')
  const page = await open('/')
  const views = ['/', '/pools/github/acme/gh-nix', '/runners/tailplane-runners/hostile', '/clusters', '/clusters?open=hostile', '/signins', '/network?tab=tailnets', '/network?tab=gateways', '/network?tab=routes', '/network?tab=groups', '/fleet', '/fleet?tab=orgs', '/fleet?tab=holds', '/fleet?tab=drift', '/fleet?tab=forges', '/changes', '/adapters', '/settings']
  const clean = async (path) => {
    const bad = await page.evaluate(() => {
      const bad = [...document.querySelectorAll('img, #app script, iframe, object, embed')].map((e) => e.outerHTML)
      for (const a of document.querySelectorAll('a[href]')) if (!['http:', 'https:'].includes(a.protocol)) bad.push(a.outerHTML)
      if (window.hurt) bad.push('a script of a name ran')
      if (/[\u202a-\u202e\u2066-\u2069\u0000-\u0008\u001b]/.test(document.body.innerText)) bad.push('text turns around')
      return bad
    })
    must(bad.length === 0, `${path}: ${bad.join('\n')}`)
  }
  for (const path of views) {
    await go(page, path)
    const row = page.locator('tr.row .open', { hasText: 'onerror' }).first()
    if (/^\/(pools|runners)\//.test(path)) await page.locator('main').getByText('onerror').first().waitFor()
    else if (path !== '/' && path !== '/settings' && !path.includes('open')) {
      await row.click()
      await page.getByRole('dialog').getByRole('heading').filter({ hasText: 'onerror' }).waitFor()
    }
    await clean(path)
    if (path === '/fleet?tab=orgs') { // its page has its name in its address
      await page.getByRole('dialog').getByRole('link', { name: /^The page of/ }).click()
      await page.getByRole('heading', { level: 1, name: /onerror/ }).waitFor()
      await page.getByRole('heading', { name: 'What it has' }).waitFor()
      await clean('the page of an organisation')
    }
  }
  await page.keyboard.press('Control+k')
  await page.getByRole('combobox').fill('onerror')
  await page.getByRole('option').first().waitFor()
  must(!(await page.evaluate(() => window.hurt)), 'a script of a name ran')
  well(page)
  await page.context().close()
})

await check('PLANE-15_2000_rows', async () => {
  await act('many')
  const page = await open('/signins?sort=login')
  await settled(page)
  await page.getByText('2,000 sign-ins').waitFor()
  const made = () => page.locator('tbody tr.row').count()
  await soon(async () => (await made()) < 80, async () => `${await made()} rows were made`)
  await page.evaluate(() => {
    window.long = []
    new PerformanceObserver((l) => window.long.push(...l.getEntries().map((e) => Math.round(e.duration)))).observe({ type: 'longtask' })
  })
  const height = await page.evaluate(() => document.documentElement.scrollHeight)
  must(height > 2000 * 30, `the page is ${height} px high`)
  // As fast as a finger flings: ten rows a frame. Then to the end at once.
  for (let i = 1; i <= 60; i++) await page.evaluate((y) => new Promise((f) => (scrollTo(0, y), requestAnimationFrame(() => requestAnimationFrame(f)))), 360 * i)
  const long = await page.evaluate(() => window.long)
  await page.evaluate((y) => scrollTo(0, y), height)
  await page.getByText('person-1999@acme.dev').waitFor()
  await soon(async () => (await made()) < 80, async () => `${await made()} rows were made`)
  await soon(async () => (await page.locator('tbody tr.row').last().getAttribute('aria-rowindex')) === '2001', async () => 'the last row does not say which it is')
  await page.evaluate(() => scrollTo(0, 0))
  await page.getByRole('searchbox').fill('person-17')
  await page.getByText('100 of 2,000 sign-ins').waitFor()
  well(page)
  await page.context().close()
  return `long tasks while scrolling: ${long.length ? long.join(', ') + ' ms' : 'none'}`
})

await check('PL-03_a_role_that_is_lost', async () => {
  const page = await open('/clusters')
  await settled(page)
  await act('mallory')
  await page.getByRole('heading', { name: /You may not see this any more/ }).waitFor()
  await soon(async () => (await page.locator('tr.row').count()) === 0 && !(await page.innerText('main')).includes('prod-eu'), async () => 'what was known is still shown')
  await page.keyboard.press('Control+k')
  await page.getByRole('combobox').fill('prod')
  await page.getByText('Nothing that is known has these words.').waitFor()
  await act('vic')
  await page.goto(base + '/clusters')
  await page.getByRole('heading', { name: 'You may not see clusters' }).waitFor()
  await page.goto(base + '/')
  await page.getByText('You may not see these.').first().waitFor()
  await page.context().close()
})

await check('PL-01_the_denied_page', async () => {
  await act('mallory')
  const page = await open('/')
  await page.getByRole('heading', { name: 'You have no role here' }).waitFor()
  const text = await page.innerText('main')
  for (const want of ['mallory<b>@acme.dev', 'laptop.tail1234.ts.net', '#platform', 'tailplane.dev/cap/plane', '"src": ["mallory']) must(text.includes(want), `${want} is not in ${text}`)
  must((await page.locator('script, link[rel=stylesheet], #app').count()) === 0, 'the application is there')
  must(!/prod-eu|alice|kubernetes/.test(await page.content()), 'something of the installation is there')
  well(page)
  const small = await open('/clusters', { theme: 'dark', width: 320, bypass: true })
  await small.addScriptTag({ content: axe })
  const r = await small.evaluate(() => window.axe.run(document))
  const found = r.violations.filter((v) => v.impact === 'serious' || v.impact === 'critical').map((v) => v.id + ' ' + v.nodes[0].html)
  must(found.length === 0, found.join('\n'))
  must((await small.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0, 'it is wider than the screen')
  await small.context().close()
  await act('alice')
  await page.goto(base + '/nowhere')
  await page.getByRole('heading', { name: 'There is nothing at this address' }).waitFor()
  await page.goto(base + '/text')
  await soon(async () => /Sign-ins\s+2000/.test(await page.innerText('body')), async () => await page.innerText('body'))
  await page.context().close()
})

await browser.close()
say('end', true)
