// Announcements for screen readers: at most one summary in five seconds, the latest.

export const said = $state({ text: '' })

const pause = 5000
let last = -pause
let timer: ReturnType<typeof setTimeout> | undefined
let next = ''

export function say(text: string): void {
  next = text
  if (timer !== undefined) return
  const wait = Math.max(0, last + pause - performance.now())
  timer = setTimeout(() => {
    timer = undefined
    last = performance.now()
    said.text = next
  }, wait)
}
