package truth

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// First is when an organisation is looked at for the first time after a start: they
// are spread over one period, so that a restart is no wave of requests.
func First(org string, start time.Time, every time.Duration) time.Time {
	return start.Add(time.Duration(fraction(org, 0) * float64(every)))
}

// Next is when it is looked at again, a tenth of the period earlier or later, so that
// those that met by chance part again. It depends on nothing but what it is given.
func Next(org string, last time.Time, every time.Duration) time.Time {
	return last.Add(every + time.Duration((fraction(org, last.UnixNano())-0.5)*0.2*float64(every)))
}

// fraction is a number from 0 up to 1, always the same for the same.
func fraction(text string, n int64) float64 {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(text+"\x00"), uint64(n)))
	return float64(binary.BigEndian.Uint64(sum[:8])>>11) / (1 << 53)
}
