// The filter and the order of a list's rows.

export type Value = string | number | boolean | null | undefined
export type Sort = { key: string; down: boolean }

const natural = new Intl.Collator('en', { numeric: true, sensitivity: 'base' })

/** Compares two values. Unknown values are last in both directions. */
export function order(a: Value, b: Value, down: boolean): number {
  const an = a === null || a === undefined || a === ''
  const bn = b === null || b === undefined || b === ''
  if (an || bn) return an === bn ? 0 : an ? 1 : -1
  const n = typeof a === 'number' && typeof b === 'number' ? a - b : natural.compare(String(a), String(b))
  return down ? -n : n
}

/** Rows sorted by a value, and by id for equal values. */
export function sorted<R extends { id: string }>(rows: readonly R[], value: (r: R) => Value, down: boolean): R[] {
  return rows
    .map((r) => [value(r), r] as const)
    .sort((a, b) => order(a[0], b[0], down) || natural.compare(a[1].id, b[1].id))
    .map((p) => p[1])
}

/** "name", "-name": the sort in the address of the page. */
export function readSort(text: string | null, keys: readonly string[], otherwise: Sort): Sort {
  const down = text?.startsWith('-') ?? false
  const key = down ? text!.slice(1) : text
  return key && keys.includes(key) ? { key, down } : otherwise
}

export function writeSort(s: Sort): string {
  return (s.down ? '-' : '') + s.key
}

/**
 * Whether a row matches every word of the filter. "word" searches in all fields, "field:word"
 * in one, and "-word" must not match.
 */
export function matcher(filter: string): (fields: Record<string, Value>) => boolean {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean)
  return (fields) =>
    words.every((w) => {
      const not = w.length > 1 && w.startsWith('-')
      if (not) w = w.slice(1)
      const colon = w.indexOf(':')
      const field = colon > 0 ? w.slice(0, colon) : ''
      const has = Object.hasOwn(fields, field)
        ? String(fields[field] ?? '').toLowerCase().includes(w.slice(colon + 1))
        : Object.values(fields).some((v) => String(v ?? '').toLowerCase().includes(w))
      return has !== not
    })
}

/** The visible part of a long list, with some rows around it. */
export function part(total: number, height: number, above: number, view: number, around = 10): { from: number; to: number } {
  if (height <= 0) return { from: 0, to: Math.min(total, 40) }
  const from = Math.max(0, Math.floor(above / height) - around)
  const to = Math.min(total, Math.ceil((above + view) / height) + around)
  return { from: Math.min(from, total), to: Math.max(to, Math.min(total, from)) }
}

/**
 * The number of rows that differ between the shown list and the current one: added and removed
 * rows, or 1 for a different order. Used while the pointer is on the rows.
 */
export function updates(shown: readonly string[], now: readonly string[]): number {
  const a = new Set(shown)
  const b = new Set(now)
  let n = 0
  for (const id of now) if (!a.has(id)) n++
  for (const id of shown) if (!b.has(id)) n++
  return n || (shown.some((id, i) => id !== now[i]) ? 1 : 0)
}
