// One clock for all relative times of the page.

export const clock = $state({ now: Date.now() })

export function tick(): () => void {
  const t = setInterval(() => {
    if (!document.hidden) clock.now = Date.now()
  }, 5000)
  return () => clearInterval(t)
}
