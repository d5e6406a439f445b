package serving

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
)

// A ledger is a connection that writes down what is written to it, and by which
// calls.
type ledger struct {
	net.Conn
	all  []byte
	ends []int
}

func (l *ledger) Write(p []byte) (int, error) {
	l.all = append(l.all, p...)
	l.ends = append(l.ends, len(l.all))
	return len(p), nil
}

func pooled() *sync.Pool { return &sync.Pool{New: func() any { return new([]byte) }} }

// However net/http cuts frames, each call to the system ends with one, unless it
// is very long; and nothing waits when all that was written are whole frames.
func TestWholeFrames(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		var all []byte
		var borders []int
		for i := range 1 + random.IntN(40) {
			size := random.IntN(20_000)
			if i == 0 {
				size = 6 * random.IntN(5) // SETTINGS
			}
			all = append(all, byte(size>>16), byte(size>>8), byte(size), 0, 0, 0, 0, 0, 1)
			all = append(all, make([]byte, size)...)
			borders = append(borders, len(all))
		}
		l := new(ledger)
		below := &gather{Conn: l, pool: pooled()}
		c := &whole{Conn: below, below: below}
		for rest := all; len(rest) > 0; {
			n := 1 + random.IntN(min(len(rest), []int{10, 4096, 30_000}[random.IntN(3)]))
			if m, err := c.Write(rest[:n]); m != n || err != nil {
				t.Fatal(m, err)
			}
			rest = rest[n:]
			done := len(all) - len(rest)
			if slices.Contains(borders, done) && len(l.all) != done {
				t.Fatalf("a frame has ended, and %d bytes wait", done-len(l.all))
			}
		}
		if !bytes.Equal(l.all, all) {
			t.Fatal("other bytes were written")
		}
		last := 0
		for _, at := range l.ends {
			if !slices.Contains(borders, at) && at-last < gatherMost {
				t.Fatalf("a call ends at %d, which is no frame's end", at)
			}
			last = at
		}
	}
}

// What waits is bounded, whatever the length of a frame.
func TestWholeFrameIsBounded(t *testing.T) {
	l := new(ledger)
	below := &gather{Conn: l, pool: pooled()}
	c := &whole{Conn: below, below: below}
	head := binary.BigEndian.AppendUint32(nil, 10<<20<<8)
	for _, p := range [][]byte{append(head, 0, 0, 0, 0, 1), make([]byte, gatherMost), make([]byte, 100)} {
		if _, err := c.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.all) < gatherMost {
		t.Errorf("%d bytes were written", len(l.all))
	}
}

// HTTP/1 has no frames: all is written as it comes.
func TestWholeLetsHTTP1Be(t *testing.T) {
	l := new(ledger)
	below := &gather{Conn: l, pool: pooled()}
	c := &whole{Conn: below, below: below}
	want := 0
	for _, p := range []string{"HTTP/1.1 200 OK\r\n", "Content-Length: 1\r\n\r\n", "x"} {
		if _, err := c.Write([]byte(p)); err != nil {
			t.Fatal(err)
		}
		if want += len(p); len(l.all) != want {
			t.Errorf("%d bytes wait", want-len(l.all))
		}
	}
}
