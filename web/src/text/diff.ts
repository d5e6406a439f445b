// A unified diff, as git writes it, line by line.
import { plain } from './names.ts'

export type Line = { is: 'file' | 'part' | 'add' | 'del' | 'same'; text: string }

/**
 * The lines of a diff with what each is: of the file's head, where a part begins, added,
 * removed, or as it was. The signs stay in the text. Tabs stay too; nothing else that
 * cannot be seen does.
 */
export function lines(diff: string): Line[] {
  const all = diff.split('\n')
  if (all.at(-1) === '') all.pop()
  // How many lines of the file before and after are still to come in this part: only
  // that tells a line of the file that begins with "--" from the head of the next.
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

/** "3 lines added, 1 removed": a diff in words. */
export function summary(all: Line[]): string {
  const n = (is: Line['is']) => all.filter((l) => l.is === is).length
  const added = n('add')
  return `${added} ${added === 1 ? 'line' : 'lines'} added, ${n('del')} removed`
}
