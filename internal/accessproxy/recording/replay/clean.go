package replay

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Bounds of what Clean writes.
const (
	maxColumns, maxRows         = 500, 200
	defaultColumns, defaultRows = 80, 24
	maxSeconds                  = 1e7 // 115 days
)

// ErrTooLarge means that a recording has more bytes than the caller of Clean wants.
var ErrTooLarge = errors.New("the recording is too large")

// Clean copies an asciicast of version 2 for a player that is not a Player. Output has passed a Filter. Sizes are bounded, markers are
// plain text, input and all other events are left out. Of the header only the size remains. A recording whose last line is not complete is
// copied up to there. Clean writes at most about the given number of bytes: it then writes a last marker, and returns [ErrTooLarge].
func Clean(out io.Writer, r io.Reader, most int64) error {
	in := bufio.NewReaderSize(r, 64<<10)
	columns, rows, err := readHeader(in)
	if err != nil {
		return err
	}
	c := cleaner{out: bufio.NewWriterSize(out, 32<<10), left: most}
	fmt.Fprintf(c.out, "{\"version\":2,\"width\":%d,\"height\":%d}\n", columns, rows)
	return errors.Join(c.copy(in), c.out.Flush())
}

// readHeader reads the first line of a recording, and returns the bounded size of its terminal.
func readHeader(in *bufio.Reader) (columns, rows int, err error) {
	head, _, err := readLine(in)
	if err != nil {
		return 0, 0, fmt.Errorf("read the header of the recording: %w", err)
	}
	var header struct {
		Version int `json:"version"`
		Width   int `json:"width"`
		Height  int `json:"height"`
	}
	if json.Unmarshal(head, &header) != nil || header.Version != 2 {
		return 0, 0, errors.New("this is no recording: its first line is no header of an asciicast of version 2")
	}
	columns, rows = bounded(header.Width, header.Height)
	return columns, rows, nil
}

// bounded returns a size that a terminal may have.
func bounded(columns, rows int) (int, int) {
	if columns < 1 || rows < 1 {
		return defaultColumns, defaultRows
	}
	return min(columns, maxColumns), min(rows, maxRows)
}

// A cleaner writes the events of a recording.
type cleaner struct {
	out    *bufio.Writer
	filter Filter
	left   int64
	last   float64
}

func (c *cleaner) copy(in *bufio.Reader) error {
	for {
		line, whole, err := readLine(in)
		if errors.Is(err, io.EOF) || err == nil && !whole {
			return nil
		}
		if err != nil {
			return errors.Join(fmt.Errorf("read the recording: %w", err), c.write("m", "the rest of the recording could not be read"))
		}
		at, code, text, ok := parseEvent(line)
		if !ok {
			continue
		}
		if code, text = c.clean(code, text); text == "" {
			continue
		}
		c.last = max(c.last, min(at, maxSeconds))
		event, err := c.event(code, text)
		if err != nil {
			return err
		}
		if c.left -= int64(len(event)); c.left < 0 {
			return errors.Join(ErrTooLarge, c.write("m", "the rest of the recording is not shown here"))
		}
		if _, err := c.out.Write(event); err != nil {
			return err
		}
	}
}

// clean returns what a player may see of an event; "" is nothing.
func (c *cleaner) clean(code, text string) (string, string) {
	switch code {
	case "o":
		return code, c.filter.Pass(text)
	case "m":
		return code, new(Filter).Pass(strings.Map(withoutControl, text))
	case "r":
		columns, rows, ok := strings.Cut(text, "x")
		w, errW := strconv.Atoi(columns)
		h, errH := strconv.Atoi(rows)
		if !ok || errors.Join(errW, errH) != nil {
			return code, ""
		}
		w, h = bounded(w, h)
		return code, fmt.Sprintf("%dx%d", w, h)
	}
	return code, ""
}

func (c *cleaner) write(code, text string) error {
	event, err := c.event(code, text)
	if err == nil {
		_, err = c.out.Write(event)
	}
	return err
}

// event returns an event as a line of the recording.
func (c *cleaner) event(code, text string) ([]byte, error) {
	b, err := json.Marshal(text)
	return fmt.Appendf(nil, "[%.6f,%q,%s]\n", c.last, code, b), err
}
