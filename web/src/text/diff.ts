// A unified diff in git's format, line by line.
import { plain } from './names.ts'

export type Line = { is: 'file' | 'part' | 'add' | 'del' | 'same'; text: string }

/**
 * The lines of a diff with their types: file header, hunk header, added, removed, or
 * unchanged. Signs and tabs stay in the text. Other invisible characters are replaced.
 */
export function lines(diff: string): Line[] {
  const all = diff.split('\n')
  if (all.at(-1) === '') all.pop()
  // Remaining lines of the old and the new file in this hunk. Only this distinguishes a line
  // of the file that begins with "--" from the header of the next file.
  let before = 0
  let after = 0
  return all.map((raw) => {
    const text = raw.split('\t').map(plain).join('\t')
    const part = /^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@/.exec(raw)
    if (before + after <= 0 && part) {
      before = Number(part[1] ?? 1)
      after = Number(part[2] ?? 1)
      return { is: 'part', text }
    }
    if (before + after <= 0) return { is: raw.startsWith('\\') ? 'same' : 'file', text }
    if (raw.startsWith('+')) {
      after--
      return { is: 'add', text }
    }
    if (raw.startsWith('-')) {
      before--
      return { is: 'del', text }
    }
    if (!raw.startsWith('\\')) {
      before--
      after--
    }
    return { is: 'same', text }
  })
}

/** "3 lines added, 1 removed": a summary of a diff. */
export function summary(all: Line[]): string {
  const n = (is: Line['is']) => all.filter((l) => l.is === is).length
  const added = n('add')
  return `${added} ${added === 1 ? 'line' : 'lines'} added, ${n('del')} removed`
}
