// The reason that every write has: it stands in the record.

const most = 500

/** What a reason lacks, in a sentence; "" if it is one. */
export function lacking(reason: string): string {
  if (reason.trim() === '') return 'Say why: the reason is kept in the record.'
  return [...reason].length > most ? `The reason has more than ${most} characters.` : ''
}

/** A reason as it is sent: in one line. */
export function oneLine(reason: string): string {
  return reason.trim().replace(/\s+/g, ' ')
}
