// The screen of a terminal as runs of text that look the same.
import type { IBufferCell, Terminal } from '@xterm/headless'

export interface Run {
  text: string
  color: string
  background: string
  /** Names of style classes: bold, italic, under, strike, double. */
  looks: string
}

const palette = [
  '#6e7681', '#ff8f86', '#7ee787', '#e3b341', '#8ab8ff', '#d8b4fe', '#76e3ea', '#d0d7de',
  '#8b949e', '#ffaba6', '#a5f3b1', '#f2cc60', '#b0d0ff', '#e4ccff', '#a5f0f5', '#ffffff',
]

function indexed(n: number): string {
  if (n < 16) return palette[n]!
  if (n > 231) {
    const grey = 8 + (n - 232) * 10
    return `rgb(${grey} ${grey} ${grey})`
  }
  const part = (i: number): number => (i ? 55 + i * 40 : 0)
  const c = n - 16
  return `rgb(${part(Math.floor(c / 36))} ${part(Math.floor(c / 6) % 6)} ${part(c % 6)})`
}

const rgb = (n: number): string => `rgb(${(n >> 16) & 255} ${(n >> 8) & 255} ${n & 255})`

function look(c: IBufferCell): Omit<Run, 'text'> {
  let color = c.isFgRGB() ? rgb(c.getFgColor()) : c.isFgPalette() ? indexed(c.getFgColor()) : ''
  let background = c.isBgRGB() ? rgb(c.getBgColor()) : c.isBgPalette() ? indexed(c.getBgColor()) : ''
  if (c.isInverse()) [color, background] = [background || 'var(--tty)', color || 'var(--tty-text)']
  const looks = [c.isBold() && 'bold', c.isItalic() && 'italic', c.isUnderline() && 'under', c.isStrikethrough() && 'strike', c.getWidth() === 2 && 'double'].filter(Boolean).join(' ')
  return { color, background, looks }
}

/** Returns the visible lines. */
export function lines(terminal: Terminal): Run[][] {
  const buffer = terminal.buffer.active
  const cell = buffer.getNullCell()
  return Array.from({ length: terminal.rows }, (_, y) => {
    const line = buffer.getLine(buffer.baseY + y)
    const runs: Run[] = []
    for (let x = 0; line && x < terminal.cols; x++) {
      const c = line.getCell(x, cell)
      if (!c || c.getWidth() === 0) continue // the second half of a wide character
      const text = c.isInvisible() ? ' ' : c.getChars() || ' '
      const l = look(c)
      const last = runs.at(-1)
      if (last && last.color === l.color && last.background === l.background && last.looks === l.looks && c.getWidth() === 1) last.text += text
      else runs.push({ text, ...l })
    }
    const end = runs.at(-1)
    if (end && !end.background && !end.looks) end.text = end.text.trimEnd()
    return runs
  })
}
