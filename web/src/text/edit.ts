// The patch of an object from the texts in a form.
import type { Enrollment } from '../wire.ts'

/** A merge patch (RFC 7386) of a spec, or the reason why there is none. */
export type Patch = { patch: Record<string, unknown>; bad: '' } | { patch: null; bad: string; field?: string }

const none = 'Change something first.'

/**
 * One field of a form: its path in the spec, and the current value. Make converts the words of
 * a list into values of the spec.
 */
export type Field = { key: string; label: string; type: 'number' | 'list' | 'text'; now: string | null; make?: (words: string[]) => unknown }

/** The words of a list, separated by line breaks or commas, without duplicates. */
export function words(text: string): string[] {
  return [...new Set(text.split(/[\s,]+/).filter(Boolean))]
}

/** A patch of the fields whose values differ from the current ones. */
export function fromFields(fields: readonly Field[], typed: Record<string, string>): Patch {
  const patch: Record<string, unknown> = {}
  for (const f of fields) {
    const text = (typed[f.key] ?? '').trim()
    const same = f.type === 'list' ? words(text).join() === words(f.now ?? '').join() : text === (f.now ?? '')
    if (same) continue
    let value: unknown = text
    if (f.type === 'list') value = f.make ? f.make(words(text)) : words(text)
    if (f.type === 'number') {
      if (!/^\d{1,6}$/.test(text)) return { patch: null, bad: `${f.label} must be a whole number.`, field: f.key }
      value = Number(text)
    }
    if (f.type === 'text' && text === '') value = null // null removes a field in a merge patch
    const path = f.key.split('.')
    let at = patch
    for (const p of path.slice(0, -1)) at = (at[p] ??= {}) as Record<string, unknown>
    at[path.at(-1)!] = value
  }
  return Object.keys(patch).length ? { patch, bad: '' } : { patch: null, bad: none, field: fields[0]?.key }
}

/** The editable fields of an organisation. An unknown value has no field. */
export function ofEnrollment(e: Pick<Enrollment, 'owners' | 'members' | 'quota'>): Field[] {
  return [
    ...(e.owners ? [{ key: 'owners', label: 'Owners', type: 'list', now: e.owners.join('\n') } as const] : []),
    ...(e.members ? [{ key: 'members', label: 'Members', type: 'list', now: e.members.join('\n') } as const] : []),
    { key: 'quota.cpu', label: 'Quota: CPU', type: 'text', now: e.quota?.cpu ?? '' },
    { key: 'quota.memory', label: 'Quota: memory', type: 'text', now: e.quota?.memory ?? '' },
    { key: 'quota.pods', label: 'Quota: pods', type: 'number', now: e.quota ? String(e.quota.pods) : '' },
  ]
}

/** The pools of an organisation, by name. A pool that stays keeps its type, limit and repositories. */
export function ofPools(pools: Enrollment['pools']): Field[] {
  if (!pools) return []
  const use = (name: string) => {
    const p = pools.find((x) => x.name === name)
    return { name, ...(p && { type: p.type, ...(p.max !== null && { max: p.max }), ...(p.repositories?.length && { repositories: p.repositories }) }) }
  }
  return [{ key: 'pools', label: 'Pools', type: 'list', now: pools.map((p) => p.name).join('\n'), make: (names) => names.map(use) }]
}

/** The differing fields: label, old value, and new value. */
export function differing(was: readonly Field[], is: readonly Field[]): [label: string, was: string, is: string][] {
  const shown = (f: Field | undefined) => words(f?.now ?? '').join(', ')
  return was.map((f): [string, string, string] => [f.label, shown(f), shown(is.find((x) => x.key === f.key))]).filter(([, a, b]) => a !== b)
}

/** The patch that the person typed as JSON. */
export function fromText(text: string): Patch {
  if (text.trim() === '') return { patch: null, bad: none }
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (e) {
    return { patch: null, bad: `The patch is not valid JSON: ${e instanceof Error ? e.message : e}.` }
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return { patch: null, bad: 'A patch must be a JSON object with fields of the spec.' }
  return Object.keys(value).length ? { patch: value as Record<string, unknown>, bad: '' } : { patch: null, bad: none }
}
