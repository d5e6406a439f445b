package replay

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// maxLine is the most bytes of a line of a recording. One frame of a terminal's output is at most a few times 64 KiB.
const maxLine = 4 << 20

// A Player plays an asciicast of version 2.
type Player struct {
	Out     io.Writer
	Speed   float64       // 1: as it was; 0: without pauses
	MaxIdle time.Duration // longer pauses are shortened; 0: none is
	Markers bool          // print the markers, which sizes and hashes of streams without a terminal are
	Sleep   func(ctx context.Context, d time.Duration) error
}

// Play plays the recording until its end or the end of ctx, and brings the terminal back to its usual state. A recording whose last line is
// not complete, because it was cut or is still live, is played up to there.
func (p Player) Play(ctx context.Context, r io.Reader) (err error) {
	in := bufio.NewReaderSize(r, 64<<10)
	if _, _, err := readHeader(in); err != nil {
		return err
	}
	filter, last := new(Filter), 0.0
	defer func() {
		_, e := io.WriteString(p.Out, filter.Reset())
		err = errors.Join(err, e)
	}()
	for {
		line, whole, err := readLine(in)
		if errors.Is(err, io.EOF) || err == nil && !whole {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the recording: %w", err)
		}
		at, code, text, ok := parseEvent(line)
		if !ok {
			continue
		}
		if at > last {
			if err := p.wait(ctx, at-last); err != nil {
				return err
			}
			last = at
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := p.show(filter, code, text); err != nil {
			return err
		}
	}
}

// show writes an event.
func (p Player) show(filter *Filter, code, text string) error {
	switch {
	case code == "o":
		text = filter.Pass(text)
	case code == "m" && p.Markers: // a line of its own, without any control character
		text = "[" + new(Filter).Pass(strings.Map(withoutControl, text)) + "]\r\n"
		filter.changed = true
	default:
		return nil
	}
	_, err := io.WriteString(p.Out, text)
	return err
}

func withoutControl(r rune) rune {
	if r < 0x20 || r == 0x7f {
		return -1
	}
	return r
}

// wait sleeps for the time between two events.
func (p Player) wait(ctx context.Context, seconds float64) error {
	if p.Speed <= 0 {
		return nil
	}
	d := time.Duration(min(seconds, math.MaxInt32) * float64(time.Second))
	if p.MaxIdle > 0 {
		d = min(d, p.MaxIdle)
	}
	return p.Sleep(ctx, time.Duration(float64(d)/p.Speed))
}

// readLine returns a line without its end. whole is false for the last line if it has no end.
func readLine(r *bufio.Reader) (line []byte, whole bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxLine {
			return nil, false, fmt.Errorf("a line has more than %d bytes", maxLine)
		}
		switch {
		case err == nil:
			return line[:len(line)-1], true, nil
		case errors.Is(err, io.EOF) && len(line) > 0:
			return line, false, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, false, err
		}
	}
}

// parseEvent parses a line. Lines of other forms are skipped, as other players do.
func parseEvent(line []byte) (at float64, code, text string, ok bool) {
	var fields []json.RawMessage
	if json.Unmarshal(line, &fields) != nil || len(fields) != 3 {
		return 0, "", "", false
	}
	for i, into := range []any{&at, &code, &text} {
		if json.Unmarshal(fields[i], into) != nil {
			return 0, "", "", false
		}
	}
	return at, code, text, at >= 0
}
