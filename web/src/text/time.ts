// The format of times. Every function takes now, so that one clock updates a page.

export type Zone = 'local' | 'utc'

const second = 1000
const minute = 60 * second
const hour = 60 * minute
const day = 24 * hour

/** A duration in at most two units, such as "1h 30m". */
export function span(ms: number): string {
  const d = Math.abs(ms)
  if (d < second) return '0s'
  if (d < minute) return `${Math.floor(d / second)}s`
  if (d < hour) return two(d, minute, 'm', second, 's', d < 10 * minute)
  if (d < day) return two(d, hour, 'h', minute, 'm', true)
  return two(d, day, 'd', hour, 'h', d < 10 * day)
}

function two(d: number, big: number, b: string, small: number, s: string, both: boolean): string {
  const n = Math.floor(d / big)
  const m = Math.floor((d % big) / small)
  return both && m > 0 ? `${n}${b} ${m}${s}` : `${n}${b}`
}

/** A relative time: "5m ago", "in 5m", "just now". */
export function relative(iso: string | null | undefined, now: number): string {
  const t = parse(iso)
  if (t === null) return 'unknown'
  const d = t - now
  if (Math.abs(d) < 5 * second) return 'just now'
  return d < 0 ? `${coarse(-d)} ago` : `in ${coarse(d)}`
}

/** A duration in one unit, for a cell. */
export function coarse(ms: number): string {
  const d = Math.abs(ms)
  if (d < minute) return `${Math.max(1, Math.floor(d / second))}s`
  if (d < hour) return `${Math.floor(d / minute)}m`
  if (d < 2 * day) return two(d, hour, 'h', minute, 'm', d < 10 * hour)
  return `${Math.floor(d / day)}d`
}

/** The full time, in the chosen time zone. */
export function absolute(iso: string | null | undefined, zone: Zone): string {
  const t = parse(iso)
  if (t === null) return 'unknown'
  const d = new Date(t)
  if (zone === 'utc') return d.toISOString().slice(0, 19).replace('T', ' ') + ' UTC'
  const p = (n: number) => String(n).padStart(2, '0')
  return `${d.getFullYear()}-${p(d.getMonth() + 1)}-${p(d.getDate())} ${p(d.getHours())}:${p(d.getMinutes())}:${p(d.getSeconds())}`
}

/** Milliseconds since 1970, or null if there is no time: absent, or Go's zero time. */
export function parse(iso: string | null | undefined): number | null {
  if (!iso) return null
  const t = Date.parse(iso)
  return Number.isNaN(t) || t < 0 ? null : t
}
