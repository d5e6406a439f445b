// Reads an asciicast of version 2, which the server has filtered.

export interface CastEvent {
  /** Seconds of play, with long pauses shortened. */
  at: number
  code: 'o' | 'r' | 'm'
  text: string
}

export interface Cast {
  columns: number
  rows: number
  events: CastEvent[]
  /** Seconds of play. */
  length: number
}

const size = (columns: unknown, rows: unknown): [number, number] => {
  const whole = (n: unknown, most: number, other: number): number => (Number.isInteger(n) && (n as number) > 0 ? Math.min(n as number, most) : other)
  return [whole(columns, 500, 80), whole(rows, 200, 24)]
}

/** Returns the size in the text of a resize event. */
export function resized(text: string): [number, number] {
  const [columns, rows] = text.split('x')
  return size(Number(columns), Number(rows))
}

/** Parses a recording. Pauses are shortened to idle seconds. Lines that are no events are left out. */
export function parse(text: string, idle: number): Cast {
  const lines = text.split('\n')
  const head = object(lines[0]) as { version?: unknown; width?: unknown; height?: unknown } | null
  if (head?.version !== 2) throw new Error('This is no recording: its first line is no header of an asciicast of version 2.')
  const [columns, rows] = size(head.width, head.height)
  const events: CastEvent[] = []
  let last = 0
  let length = 0
  for (const line of lines.slice(1)) {
    const event = object(line)
    if (!Array.isArray(event)) continue
    const [at, code, data] = event as unknown[]
    if (typeof at !== 'number' || typeof data !== 'string' || (code !== 'o' && code !== 'r' && code !== 'm')) continue
    length += Math.min(Math.max(at - last, 0), idle)
    last = Math.max(last, at)
    events.push({ at: length, code, text: data })
  }
  return { columns, rows, events, length }
}

function object(line: string | undefined): object | null {
  try {
    const value: unknown = JSON.parse(line ?? '')
    return typeof value === 'object' ? value : null
  } catch {
    return null
  }
}

/** Returns seconds as 1:02 or 1:02:03. */
export function clockTime(seconds: number): string {
  const s = Math.floor(seconds)
  const two = (n: number): string => String(n).padStart(2, '0')
  return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`
}
