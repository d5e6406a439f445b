// What is to be changed of an object, from what somebody wrote into a form.

/** A merge patch (RFC 7386) of a spec, or why there is none. */
export type Patch = { patch: Record<string, unknown>; bad: '' } | { patch: null; bad: string }

const none = 'Change something first.'

/** One field of a form: where it stands in the spec, and what is there now. */
export type Field = { key: string; label: string; type: 'number' | 'list' | 'text'; now: string | null }

/** The words of a list, one a line or with commas between them, each once. */
export function words(text: string): string[] {
  return [...new Set(text.split(/[\s,]+/).filter(Boolean))]
}

/** A patch of the fields that say something else than what is there now. */
export function fromFields(fields: readonly Field[], typed: Record<string, string>): Patch {
  const patch: Record<string, unknown> = {}
  for (const f of fields) {
    const text = (typed[f.key] ?? '').trim()
    const same = f.type === 'list' ? words(text).join() === words(f.now ?? '').join() : text === (f.now ?? '')
    if (same) continue
    let value: unknown = text
    if (f.type === 'list') value = words(text)
    if (f.type === 'number') {
      if (!/^\d{1,6}$/.test(text)) return { patch: null, bad: `${f.label} is a whole number.` }
      value = Number(text)
    }
    if (f.type === 'text' && text === '') value = null // a merge patch takes away what is null
    const path = f.key.split('.')
    let at = patch
    for (const p of path.slice(0, -1)) at = (at[p] ??= {}) as Record<string, unknown>
    at[path.at(-1)!] = value
  }
  return Object.keys(patch).length ? { patch, bad: '' } : { patch: null, bad: none }
}

/** The patch that somebody wrote as JSON. */
export function fromText(text: string): Patch {
  if (text.trim() === '') return { patch: null, bad: none }
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (e) {
    return { patch: null, bad: `It is not JSON: ${e instanceof Error ? e.message : e}.` }
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return { patch: null, bad: 'A patch is a JSON object of fields of the spec.' }
  return Object.keys(value).length ? { patch: value as Record<string, unknown>, bad: '' } : { patch: null, bad: none }
}
