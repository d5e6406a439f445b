import type { Signin } from '../wire.ts'

// Names, labels and addresses are untrusted data and are shown as text.

const hidden = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\u2028\u2029]/gu

/** Text on one line without invisible characters and characters that change the text direction. */
export function plain(s: unknown): string {
  if (s === null || s === undefined) return ''
  return String(s).replace(hidden, '\uFFFD')
}

/** The address if it is an https URL, otherwise null. Other schemes never become links. */
export function link(s: string | null | undefined): string | null {
  if (!s) return null
  try {
    const u = new URL(s)
    return u.protocol === 'https:' && u.username === '' && u.password === '' ? u.href : null
  } catch {
    return null
  }
}

/** Two letters for a person, instead of a picture from a third party. */
export function initials(name: string): string {
  const words = plain(name).split('@')[0]!.split(/[^\p{L}\p{N}]+/u).filter(Boolean)
  const first = [...(words[0] ?? '?')]
  const last = words.length > 1 ? [...words[words.length - 1]!] : []
  return (first[0]! + (last[0] ?? first[1] ?? '')).toUpperCase()
}

/** Returns a number from 0 to 5 that depends on the name: one of six tints for a person. */
export function tint(name: string): number {
  let h = 0
  for (const c of name) h = (h * 31 + c.codePointAt(0)!) >>> 0
  return h % 6
}

/** Singular and plural: "1 route", "3 routes". */
export function count(n: number, one: string, many = one + 's'): string {
  return `${n.toLocaleString('en')} ${n === 1 ? one : many}`
}

/**
 * An argument of a shell command, in quotes if necessary. Invisible characters are escaped, so
 * that a person sees everything that they paste.
 */
export function shell(s: string): string {
  if (plain(s) !== s) {
    const spelt = (c: string) => (c === "'" || c === '\\' ? '\\' + c : plain(c) === c ? c : '\\U' + c.codePointAt(0)!.toString(16).padStart(8, '0'))
    return `$'${[...s].map(spelt).join('')}'`
  }
  return /^[\w@%+=:,./-]+$/.test(s) ? s : `'${s.replaceAll("'", "'\\''")}'`
}

/** An abbreviated commit ID; "" for none. */
export function commit(id: string): string {
  return plain(id).slice(0, 10)
}

/**
 * The names in an address below a page, such as /orgs/acme. Returns null if the address has
 * another number of names than many.
 */
export function under(page: string, path: string, many: number): string[] | null {
  const parts = path.startsWith(page + '/') ? path.slice(page.length + 1).split('/') : []
  if (parts.length !== many || parts.includes('')) return null
  try {
    return parts.map(decodeURIComponent)
  } catch {
    return null // not an address of this page
  }
}

/** The organisation of an address, or "". */
export function orgOf(path: string): string {
  return under('/orgs', path, 1)?.[0] ?? ''
}

/** An address with the escaped names. */
export function address(...names: string[]): string {
  return names.map((n) => '/' + encodeURIComponent(n)).join('')
}

/** Where the roles of a sign-in apply. */
export function places(s: Signin): string {
  if (!s.bind?.length) return s.namespaces?.length ? s.namespaces.join(', ') : 'whole cluster'
  return s.bind.map((b) => `${b.role}: ${b.namespaces?.join(', ') ?? b.namespaceSelector ?? 'whole cluster'}`).join('; ')
}
