import assert from 'node:assert/strict'
import { test } from 'node:test'
import { initials, link, plain, shell, tint } from '../src/text/names.ts'
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

test('what is not known comes last, both ways', () => {
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

test('PLANE-15: of 2,000 rows only those on the screen are made', () => {
  assert.deepEqual(part(2000, 32, 0, 800), { from: 0, to: 35 })
  assert.deepEqual(part(2000, 32, 32 * 1000, 800), { from: 990, to: 1035 })
  assert.deepEqual(part(2000, 32, 32 * 5000, 800), { from: 2000, to: 2000 })
  assert.deepEqual(part(3, 32, -500, 800), { from: 0, to: 3 })
})

test('updates while somebody points at the rows', () => {
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
