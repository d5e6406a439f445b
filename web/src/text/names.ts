// Names, labels and addresses come from others: they are data, shown as text.

const hidden = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\u2028\u2029]/gu

/** Text on one line in which no character is invisible or turns the reading around. */
export function plain(s: unknown): string {
  if (s === null || s === undefined) return ''
  return String(s).replace(hidden, '\uFFFD')
}

/** The address when it is one of https, else null: no other scheme is ever a link. */
export function link(s: string | null | undefined): string | null {
  if (!s) return null
  try {
    const u = new URL(s)
    return u.protocol === 'https:' && u.username === '' && u.password === '' ? u.href : null
  } catch {
    return null
  }
}

/** Two letters for somebody, in place of a picture from elsewhere. */
export function initials(name: string): string {
  const words = plain(name).split('@')[0]!.split(/[^\p{L}\p{N}]+/u).filter(Boolean)
  const first = [...(words[0] ?? '?')]
  const last = words.length > 1 ? [...words[words.length - 1]!] : []
  return (first[0]! + (last[0] ?? first[1] ?? '')).toUpperCase()
}

/** A number of 0 to 5, the same for the same name: which of six tints somebody has. */
export function tint(name: string): number {
  let h = 0
  for (const c of name) h = (h * 31 + c.codePointAt(0)!) >>> 0
  return h % 6
}

/** One and many: "1 route", "3 routes". */
export function count(n: number, one: string, many = one + 's'): string {
  return `${n.toLocaleString('en')} ${n === 1 ? one : many}`
}

/**
 * An argument of a command line of a shell, in quotes when it needs them. What
 * cannot be seen is spelt out, so that nothing is pasted that was not read.
 */
export function shell(s: string): string {
  if (plain(s) !== s) {
    const spelt = (c: string) => (c === "'" || c === '\\' ? '\\' + c : plain(c) === c ? c : '\\U' + c.codePointAt(0)!.toString(16).padStart(8, '0'))
    return `$'${[...s].map(spelt).join('')}'`
  }
  return /^[\w@%+=:,./-]+$/.test(s) ? s : `'${s.replaceAll("'", "'\\''")}'`
}

/** A commit, as short as people say it; "" for none. */
export function commit(id: string): string {
  return plain(id).slice(0, 10)
}

/** The names in an address below a page, such as /orgs/acme; null unless there are that many. */
export function under(page: string, path: string, many: number): string[] | null {
  const parts = path.startsWith(page + '/') ? path.slice(page.length + 1).split('/') : []
  if (parts.length !== many || parts.includes('')) return null
  try {
    return parts.map(decodeURIComponent)
  } catch {
    return null // no address that we make
  }
}

/** Whose page an address is; "" for that of nobody's. */
export function orgOf(path: string): string {
  return under('/orgs', path, 1)?.[0] ?? ''
}

/** An address of which the names are parts. */
export function address(...names: string[]): string {
  return names.map((n) => '/' + encodeURIComponent(n)).join('')
}
