package fanout

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
)

// maxKept bounds the answers that are kept, in bytes, with those that are being read.
const maxKept = 8 << 20

// kept are the last whole lists of members, for rules that would rather show an
// old one than none while a member is down. Objects are kept nowhere else.
type kept struct {
	mu   sync.Mutex
	size int // of lists, and of what is being read
	of   map[question]*list
}

// A question is what was asked, but for positions: its answer is newer or older,
// not another.
type question struct {
	cluster *upstream.Cluster // and not its name, by which another server may go later
	path    string
	query   string
	media   string
}

// A list is what a member had at a moment.
type list struct {
	form wire.Form
	body []byte
	at   time.Time
}

// asks is the question of a request, and whether its answer may be kept: what is
// asked as somebody else is that one's alone.
func asks(c *upstream.Cluster, path string, query url.Values, header http.Header) (question, bool) {
	for name := range header {
		if strings.HasPrefix(strings.ToLower(name), "impersonate-") {
			return question{}, false
		}
	}
	same := url.Values{}
	for name, values := range query {
		switch name {
		case "resourceVersion", "resourceVersionMatch", "limit", "timeout", "timeoutSeconds":
		case "continue":
			return question{}, false
		default:
			same[name] = values
		}
	}
	return question{c, path, same.Encode(), strings.Join(header["Accept"], ",")}, true
}

// get returns what is kept, if it is a whole list that is not older than a position.
func (k *kept) get(q question, notOlderThan uint64) *list {
	k.mu.Lock()
	l := k.of[q]
	k.mu.Unlock()
	if l == nil {
		return nil
	}
	if rv, whole := l.look(); !whole || rv < notOlderThan {
		return nil
	}
	return l
}

// look reads the list: its position, and whether it is all that there was.
func (l *list) look() (rv uint64, whole bool) {
	r := wire.NewList(bytes.NewReader(l.body), l.form)
	if err := r.Open(); err != nil {
		return 0, false
	}
	for {
		ok, err := r.Next()
		if err == nil && ok {
			err = r.Drop(io.Discard)
		}
		if err != nil {
			return 0, false
		}
		if !ok {
			return r.Meta.ResourceVersion, r.Meta.ResourceVersion > 0 && r.Meta.Continue == ""
		}
	}
}

// grow makes room for n bytes more, of which the oldest lists go. It says whether
// there is room.
func (k *kept) grow(n int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.size+n > maxKept {
		var oldest question
		var found *list
		for q, l := range k.of {
			if found == nil || l.at.Before(found.at) {
				oldest, found = q, l
			}
		}
		if found == nil {
			return false
		}
		delete(k.of, oldest)
		k.size -= cap(found.body)
	}
	k.size += n
	return true
}

func (k *kept) release(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.size -= n
}

// put keeps a list, whose room was made before.
func (k *kept) put(q question, l *list) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.of == nil {
		k.of = map[question]*list{}
	}
	if was := k.of[q]; was != nil {
		k.size -= cap(was.body)
	}
	k.of[q] = l
}

// A copying is an answer that is written down while it is read.
type copying struct {
	io.ReadCloser
	kept  *kept
	of    question
	list  list
	paged bool // it may be a part
	ended bool // all of it was read
	lost  bool // it is too long, or done with
}

const firstRoom = 4 << 10

// Read implements [io.Reader].
func (c *copying) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if n > 0 && !c.lost {
		c.add(p[:n])
	}
	c.ended = c.ended || err == io.EOF
	return n, err
}

func (c *copying) add(p []byte) {
	b := c.list.body
	if len(b)+len(p) > cap(b) {
		room := max(2*cap(b), len(b)+len(p), firstRoom)
		if !c.kept.grow(room) {
			c.Forget()
			return
		}
		next := make([]byte, len(b), room)
		copy(next, b)
		c.kept.release(cap(b))
		b = next
	}
	c.list.body = append(b, p...)
}

// Forget lets go of what was written down.
func (c *copying) Forget() {
	if !c.lost {
		c.lost = true
		c.kept.release(cap(c.list.body))
		c.list.body = nil
	}
}

// Keep is called when the answer was shown as a whole.
func (c *copying) Keep() {
	if !c.ended {
		// The list has ended, so there is a line's end to be read, and no more.
		io.CopyN(io.Discard, c, 16)
	}
	if c.lost {
		return
	}
	whole := c.ended
	if whole && c.paged {
		_, whole = c.list.look()
	}
	if !whole {
		c.Forget()
		return
	}
	c.lost = true
	c.kept.put(c.of, &c.list)
}

// Close implements [io.Closer].
func (c *copying) Close() error {
	c.Forget()
	return c.ReadCloser.Close()
}
