import type { Value } from '../text/rows.ts'

/** A column of a table. */
export type Column<R> = {
  key: string
  label: string
  /** What the column is sorted and filtered by. */
  value: (r: R) => Value
  /** The width on a wide page, in the size of the text; the first column takes what is left. */
  width?: number
  /** 1 is always shown; the others go where there is little room, 4 first. */
  rank?: 1 | 2 | 3 | 4
  end?: boolean
}
