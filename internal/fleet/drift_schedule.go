package fleet

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// FirstDriftCheck returns the time of an organisation's first check after a start. The first checks are
// spread over one period, so that a restart does not cause a burst of requests.
func FirstDriftCheck(org string, start time.Time, every time.Duration) time.Time {
	return start.Add(time.Duration(spread(org, 0) * float64(every)))
}

// NextDriftCheck returns the time of the next check, up to a tenth of the period earlier or later. The
// variation separates organisations whose checks coincide. The result depends only on the
// arguments.
func NextDriftCheck(org string, last time.Time, every time.Duration) time.Time {
	return last.Add(every + time.Duration((spread(org, last.UnixNano())-0.5)*0.2*float64(every)))
}

// spread returns a number in [0, 1) that depends only on its arguments.
func spread(text string, n int64) float64 {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(text+"\x00"), uint64(n)))
	return float64(binary.BigEndian.Uint64(sum[:8])>>11) / (1 << 53)
}
