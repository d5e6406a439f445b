import assert from 'node:assert/strict'
import { test } from 'node:test'
import { clockTime, parse, resized } from '../src/text/cast.ts'
import { lines, summary } from '../src/text/diff.ts'
import { differing, fromFields, fromText, ofEnrollment, ofPools, words, type Field } from '../src/text/edit.ts'
import { address, initials, link, orgOf, plain, shell, tint, under } from '../src/text/names.ts'
import { jobs, steps } from '../src/text/standing.ts'
import { lacking, oneLine } from '../src/text/reason.ts'
import { matcher, order, part, readSort, sorted, updates, writeSort } from '../src/text/rows.ts'
import { absolute, coarse, relative, span } from '../src/text/time.ts'

test('PL-04: names are plain text, and only https is a link', () => {
  assert.equal(plain('a\u202Eb\u001B[31mc\u200B'), 'a\uFFFDb\uFFFD[31mc\uFFFD')
  assert.equal(plain(null), '')
  for (const bad of ['javascript:alert(1)', 'data:text/html,x', 'http://a.example', '//a.example', 'https://u:p@a.example', '', null])
    assert.equal(link(bad), null, String(bad))
  assert.equal(link('https://a.example/x'), 'https://a.example/x')
  assert.equal(shell("a'; rm -rf /"), "'a'\\''; rm -rf /'")
  assert.equal(shell('alice@acme.dev'), 'alice@acme.dev')
  assert.equal(shell("a\u202E'\n"), "$'a\\U0000202e\\'\\U0000000a'")
})

test('initials', () => {
  assert.equal(initials('alice@acme.dev'), 'AL')
  assert.equal(initials('Ada Lovelace'), 'AL')
  assert.equal(initials('j.r.doe@x'), 'JD')
  assert.equal(initials('@'), '?')
  assert.ok(tint('alice@acme.dev') < 6)
})

test('unknown values are last in both directions', () => {
  assert.ok(order(null, 'a', false) > 0 && order(null, 'a', true) > 0)
  assert.ok(order(2, 10, false) < 0 && order('n2', 'n10', false) < 0 && order(2, 10, true) > 0)
  const rows = [{ id: 'b', n: 1 }, { id: 'a', n: 1 }, { id: 'c', n: null }]
  assert.deepEqual(sorted(rows, (r) => r.n, true).map((r) => r.id), ['a', 'b', 'c'])
})

test('a sort in the address', () => {
  const otherwise = { key: 'name', down: false }
  assert.deepEqual(readSort('-age', ['name', 'age'], otherwise), { key: 'age', down: true })
  assert.deepEqual(readSort('-constructor', ['name'], otherwise), otherwise)
  assert.equal(writeSort({ key: 'age', down: true }), '-age')
})

test('filters', () => {
  const row = { name: 'prod-eu', health: 'Alive', login: null }
  for (const f of ['', 'prod', 'PROD alive', 'health:alive', '-dead', 'name:eu -health:dead']) assert.ok(matcher(f)(row), f)
  for (const f of ['staging', 'health:dead', '-prod', 'prod -alive']) assert.ok(!matcher(f)(row), f)
})

test('PLANE-15: only the visible rows of 2,000 are rendered', () => {
  assert.deepEqual(part(2000, 32, 0, 800), { from: 0, to: 35 })
  assert.deepEqual(part(2000, 32, 32 * 1000, 800), { from: 990, to: 1035 })
  assert.deepEqual(part(2000, 32, 32 * 5000, 800), { from: 2000, to: 2000 })
  assert.deepEqual(part(3, 32, -500, 800), { from: 0, to: 3 })
})

test('updates while the pointer is on the rows', () => {
  assert.equal(updates(['a', 'b'], ['a', 'b']), 0)
  assert.equal(updates(['a', 'b'], ['b', 'a']), 1)
  assert.equal(updates(['a', 'b'], ['b', 'c', 'd']), 3)
})

test('times', () => {
  const now = Date.parse('2026-01-02T03:04:05Z')
  assert.equal(relative('2026-01-02T03:03:05Z', now), '1m ago')
  assert.equal(relative('2026-01-02T04:34:05Z', now), 'in 1h 30m')
  assert.equal(relative('0001-01-01T00:00:00Z', now), 'unknown')
  assert.equal(relative(null, now), 'unknown')
  assert.equal(absolute('2026-01-02T03:04:05Z', 'utc'), '2026-01-02 03:04:05 UTC')
  assert.equal(span(3 * 86400e3 + 3600e3), '3d 1h')
  assert.equal(coarse(49 * 3600e3), '2d')
})

test('PLANE-11: the lines of a diff have the types of git', () => {
  const diff = 'diff --git a/f b/f\nindex 1..2 100644\n--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@ spec:\n same\n--- a rule\n+++ a rule\n\tkept\n\\ No newline at end of file\n@@ -9 +9,2 @@\n-x\u202E\n+y\n+\nindex\n'
  const all = lines(diff)
  assert.deepEqual(all.map((l) => l.is), ['file', 'file', 'file', 'file', 'part', 'same', 'del', 'add', 'same', 'same', 'part', 'del', 'add', 'add', 'file'])
  assert.equal(all[8]!.text, '\tkept')
  assert.equal(all[11]!.text, '-x\uFFFD')
  assert.equal(summary(all), '3 lines added, 2 removed')
  assert.deepEqual(lines(''), [])
})

test('PLANE-11: only changed fields are proposed', () => {
  const fields: Field[] = [
    { key: 'scaling.min', label: 'Smallest', type: 'number', now: '0' },
    { key: 'scaling.max', label: 'Largest', type: 'number', now: '8' },
    { key: 'owners', label: 'Owners', type: 'list', now: 'a@x\nb@x' },
    { key: 'quota.cpu', label: 'CPU', type: 'text', now: '4' },
  ]
  const same = { 'scaling.min': '0', 'scaling.max': '8', owners: 'a@x b@x', 'quota.cpu': '4' }
  assert.equal(fromFields(fields, same).patch, null)
  assert.deepEqual(fromFields(fields, { ...same, 'scaling.max': ' 12 ' }).patch, { scaling: { max: 12 } })
  assert.deepEqual(fromFields(fields, { ...same, owners: 'b@x, c@x\nb@x', 'quota.cpu': '' }).patch, { owners: ['b@x', 'c@x'], quota: { cpu: null } })
  for (const bad of ['-1', '1.5', '', '1e3', '12 34']) assert.equal(fromFields(fields, { ...same, 'scaling.min': bad }).patch, null, bad)
  for (const bad of ['', ' ', '[]', 'null', '1', '{"a":', '{}']) assert.equal(fromText(bad).patch, null, bad)
  assert.deepEqual(fromText('{"a": null}').patch, { a: null })
  assert.deepEqual(words(' a,b\n\na '), ['a', 'b'])
})

test('existing pools keep their settings, and differences are listed', () => {
  const pools = [{ name: 'nix', type: 'Dedicated', max: 4, repositories: ['a/b'] }, { name: 'arm', type: 'Shared', max: null, repositories: [] }]
  const fields = ofPools(pools)
  assert.deepEqual(fromFields(fields, { pools: 'nix\nbig' }).patch, { pools: [pools[0], { name: 'big' }] })
  assert.deepEqual(fromFields(fields, { pools: 'nix arm' }), { patch: null, bad: 'Change something first.', field: 'pools' })
  assert.deepEqual(ofPools(null), [])
  const of = (owners: string[], pods: number) => ofEnrollment({ owners, members: null, quota: { cpu: '4', memory: '8Gi', pods } })
  assert.deepEqual(differing(of(['a@x'], 20), of(['a@x', 'b@x'], 30)), [['Owners', 'a@x', 'a@x, b@x'], ['Quota: pods', '20', '30']])
  assert.equal((fromFields(of([], 1), { owners: '', 'quota.cpu': '4', 'quota.memory': '8Gi', 'quota.pods': 'many' }) as { field?: string }).field, 'quota.pods')
})

test('the progress of an enrollment, without invented steps', () => {
  const says = (of: Record<string, string>) => Object.entries(of).map(([type, status]) => ({ type, status, reason: '', message: '' }) as never)
  const progress = (e: Partial<Parameters<typeof steps>[0]>) => steps({ phase: 'Unknown', offboard: null, conditions: [], ...e }).map((s) => `${s.name} ${s.is}`).join(', ')
  assert.equal(progress({}), 'Requested done, Approved later, Credential later, Namespace later, Registered later, Active later')
  assert.equal(progress({ phase: 'Requested' }), 'Requested done, Approved now, Credential later, Namespace later, Registered later, Active later')
  assert.equal(progress({ phase: 'Provisioning', conditions: says({ Approved: 'True', CredentialsValid: 'True', NamespaceReady: 'Unknown' }) }), 'Requested done, Approved done, Credential done, Namespace now, Registered later, Active later')
  assert.equal(progress({ phase: 'Suspended', conditions: says({ Approved: 'True', CredentialsValid: 'False', NamespaceReady: 'True', Ready: 'False' }) }), 'Requested done, Approved done, Credential bad, Namespace done, Registered later, Active later')
  assert.equal(progress({ phase: 'Suspended', conditions: null }), 'Requested done, Approved later, Credential later, Namespace later, Registered later, Active later')
  assert.ok(!/now|later/.test(progress({ phase: 'Active' })))
  const end = { step: 'Drain', since: '', message: '' }
  assert.match(progress({ phase: 'Draining', offboard: end }), /^Stop intake done, Drain now, Deregister later/)
  assert.match(progress({ phase: 'Draining', offboard: end, conditions: says({ DecisionNeeded: 'True' }) }), /Drain bad/)
  assert.ok(!/now|later/.test(progress({ phase: 'Offboarded', offboard: { ...end, step: 'Done' } })))
})

test('an unknown number of jobs is not zero, and stranded jobs have a remedy', () => {
  const of = (p: Partial<Parameters<typeof jobs>[0]>) => jobs({ assigned: 3, stranded: null, effectiveMax: 8, holds: [], controller: { kind: 'AutoscalingRunnerSet', namespace: '', name: '' }, ...p })
  assert.deepEqual(of({}), { text: 'GitHub has assigned 3 jobs to this pool, including running jobs.', stuck: '', next: '' })
  assert.match(of({ assigned: null }).text, /unknown: only the metrics/)
  assert.match(of({ assigned: null, controller: { kind: 'Deployment', namespace: '', name: '' } }).text, /unknown: only GitHub/)
  assert.match(of({ assigned: null, controller: { kind: '', namespace: '', name: '' } }).text, /unknown: no source/)
  assert.match(of({ effectiveMax: 0 }).text, /cannot start is unknown/)
  assert.equal(of({ effectiveMax: 0, stranded: 0 }).stuck, '')
  const held = of({ effectiveMax: 0, stranded: 1, holds: ['freeze'] })
  assert.match(held.stuck, /^1 job is stranded/)
  assert.match(held.next, /^Lift the holds on this pool/)
  assert.match(of({ effectiveMax: 0, stranded: 2 }).next, /no share of the budget/)
})

test('names survive a round trip through an address, and other addresses have no names', () => {
  const names = ['github', 'a/b?c', '100% ‮']
  assert.deepEqual(under('/pools', '/pools' + address(...names), 3), names)
  for (const bad of ['/pools', '/pools/', '/pools/a/b', '/pools/a/b/c/d', '/pools/a//c', '/poolsx/a/b/c', '/pools/a/b/%zz']) assert.equal(under('/pools', bad, 3), null, bad)
  assert.equal(orgOf('/orgs/acme'), 'acme')
  assert.equal(orgOf('/orgs/acme/more'), '')
})

test('a reason is not empty and fits on one line', () => {
  assert.equal(lacking('because'), '')
  assert.match(lacking(' \n'), /Enter a reason/)
  assert.equal(lacking('\u{1F600}'.repeat(500)), '')
  assert.match(lacking('x'.repeat(501)), /more than 500/)
  assert.equal(oneLine(' a\n\tb '), 'a b')
})

test('PRX-18: a recording has bounded sizes, shortened pauses, and no line that is not an event', () => {
  const cast = parse('{"version":2,"width":1e9,"height":0}\n[1,"o","a"]\n[0.5,"o","b"]\n[601,"r","99999x-1"]\n[602,"x","c"]\n[602,"o",5]\nnull\n[602', 2)
  assert.deepEqual(cast, { columns: 500, rows: 24, length: 3, events: [{ at: 1, code: 'o', text: 'a' }, { at: 1, code: 'o', text: 'b' }, { at: 3, code: 'r', text: '99999x-1' }] })
  assert.deepEqual(resized('99999x-1'), [500, 24])
  assert.deepEqual(resized('120x40'), [120, 40])
  for (const bad of ['', '[]', '{"version":3}', 'null']) assert.throws(() => parse(bad, 2), /no recording/, bad)
  assert.equal(clockTime(0), '0:00')
  assert.equal(clockTime(602.9), '10:02')
  assert.equal(clockTime(3723), '1:02:03')
})
