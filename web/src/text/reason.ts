// The reason of every write, which is in the audit log.

const most = 500

/** The problem with a reason, as a sentence; "" if it is valid. */
export function lacking(reason: string): string {
  if (reason.trim() === '') return 'Enter a reason. The audit log stores it.'
  return [...reason].length > most ? `The reason has more than ${most} characters.` : ''
}

/** The reason on one line, as it is sent. */
export function oneLine(reason: string): string {
  return reason.trim().replace(/\s+/g, ' ')
}
