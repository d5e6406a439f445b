package recording

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// ackEvery is how often a recorder acknowledges a silent stream, so that its client knows that it lives.
const ackEvery = 5 * time.Second

// Handler serves the protocol of Tailscale's recorder: HEAD and POST /v2/record over HTTP/2. The caller's http.Server must allow HTTP/2
// without TLS, have neither a read nor a write timeout, and send pings, so that connections of dead clients end. The caller decides who may
// use it. A recording whose header names no id of ours gets a new one.
func (d *Dir) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("HEAD /v2/record", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /v2/record", d.record)
	return mux
}

// An acker writes the answer.
type acker struct {
	mu   sync.Mutex
	w    *http.ResponseController
	e    *json.Encoder
	size int64
	err  error
}

type ackFrame struct {
	Ack   int64  `json:"ack,omitempty"`
	Error string `json:"error,omitempty"`
}

// send writes a frame. size is the number of received bytes, or -1 if there are no new ones.
func (a *acker) send(size int64, problem error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if size >= 0 {
		a.size = size
	}
	frame := ackFrame{Ack: a.size}
	if problem != nil {
		frame = ackFrame{Error: problem.Error()}
	}
	if a.err == nil {
		if a.err = a.e.Encode(frame); a.err == nil {
			a.err = a.w.Flush()
		}
	}
	return a.err
}

func (d *Dir) record(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor < 2 {
		http.Error(w, "use HTTP/2", http.StatusHTTPVersionNotSupported)
		return
	}
	if err := errors.Join(d.reserve(0), d.reserveOne()); err != nil { // a 200 would let a short command run before the refusal arrives
		http.Error(w, err.Error(), http.StatusInsufficientStorage)
		return
	}
	w.WriteHeader(http.StatusOK)
	a := &acker{w: http.NewResponseController(w), e: json.NewEncoder(w)}
	if a.send(0, nil) != nil {
		return
	}
	tick := time.NewTicker(ackEvery)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-tick.C:
				a.send(-1, nil)
			case <-stop:
				return
			}
		}
	}()
	err := d.receive(r.Body, a)
	tick.Stop()
	close(stop)
	<-stopped
	if err != nil {
		a.send(-1, err)
	}
}

// receive writes a body to a file. It returns why it cannot, in a sentence for the client.
func (d *Dir) receive(body io.Reader, a *acker) error {
	var f *file
	head, buf, received := []byte{}, make([]byte, 32<<10), int64(0)
	for {
		n, err := body.Read(buf)
		received += int64(n)
		part := buf[:n]
		if f == nil && n > 0 {
			head = append(head, part...)
			end := bytes.IndexByte(head, '\n')
			if end < 0 && len(head) <= maxHeader {
				part = nil // it is acknowledged when the header is whole
			} else {
				var problem error
				if f, problem = d.begin(head, end); problem != nil {
					return problem
				}
				defer f.finish(false)
				part, head = head, nil
			}
		}
		if f != nil && len(part) > 0 {
			if _, problem := f.Write(part); problem != nil {
				return problem
			}
			if a.send(received, nil) != nil {
				return nil // the client has gone
			}
		}
		switch {
		case errors.Is(err, io.EOF) && f == nil && received > 0:
			return errors.New("the recording has no header")
		case errors.Is(err, io.EOF) && f != nil:
			return f.finish(true)
		case err != nil:
			return nil // an upload that is cut stays incomplete
		}
	}
}

// begin creates the file of a recording whose first line ends at end.
func (d *Dir) begin(head []byte, end int) (*file, error) {
	if end < 0 {
		return nil, fmt.Errorf("the header has more than %d bytes", maxHeader)
	}
	h, err := ParseHeader(head[:end])
	if err != nil {
		return nil, err
	}
	id := NewID(d.cfg.Now())
	if h.Tailplane != nil && idForm.MatchString(h.Tailplane.RecordingID) {
		id = h.Tailplane.RecordingID
	}
	return d.create(id, func(int64) {}, func(error) {})
}
