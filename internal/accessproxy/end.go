package accessproxy

import (
	"context"
	"encoding/binary"
	"io"
	"mime"
	"net/http"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// boundaryWait is how long a stream that must end may take to complete the event that it is in.
const boundaryWait = time.Second

// relayStream copies a watch, a followed log or a long response of a proxied service until it ends or is cut. If the
// stream is cut, the client receives the reason in a form that its kind of stream has.
func (x *exchange) relayStream(res *http.Response, endRequest context.CancelFunc) error {
	f := &eventFrames{}
	if x.request.Verb == "watch" {
		f = newEventFrames(res.Header.Get("Content-Type"))
	}
	stop := x.endAtBoundary(f, endRequest)
	defer stop()
	flush := http.NewResponseController(x.w).Flush
	if err := flush(); err != nil {
		x.abort()
	}
	small := x.proxy.buffers.small.Get().(*[smallBuffer]byte)
	defer x.proxy.buffers.small.Put(small)
	for {
		n, err := res.Body.Read(small[:])
		if n > 0 {
			werr := x.write(small[:n])
			if werr == nil {
				werr = flush()
			}
			if werr != nil {
				x.abort()
			}
			f.passed(small[:n])
		}
		why, cut := x.stream.isCut()
		switch {
		case cut && (err != nil || f.isWhole()):
			x.writeEnd(why, f)
			return nil
		case err == io.EOF:
			return nil
		case err != nil && x.stream.kind() == apiproxy.StreamLog && x.r.Context().Err() == nil:
			x.writeEnd(cutBroken, f)
		case err != nil:
			x.abort()
		}
	}
}

// endAtBoundary ends the request to the API server when the stream is cut: at once if the client has only whole events,
// and otherwise after the current one, for which it waits boundaryWait at most. An idle stream has no goroutine for this.
func (x *exchange) endAtBoundary(f *eventFrames, endRequest context.CancelFunc) (stop func() bool) {
	return context.AfterFunc(x.stream.live, func() {
		if f.isWhole() {
			endRequest()
			return
		}
		time.AfterFunc(boundaryWait, endRequest)
	})
}

// writeEnd writes why the stream was cut. A watch ends with an ERROR event, and never with status 410, which means "list
// again". A log ends with a line of text and an aborted body, so that kubectl fails.
func (x *exchange) writeEnd(why cut, f *eventFrames) {
	flush := http.NewResponseController(x.w).Flush
	message := x.sentence(why)
	switch {
	case x.stream.kind() == apiproxy.StreamWatch && f.isWhole() && f.known():
		s := codec.Status{Message: message, Reason: apiproxy.ReasonOf(http.StatusForbidden), Code: http.StatusForbidden}
		if x.write(f.errorEvent(s)) == nil {
			_ = flush() // the end of the response tells the same
		}
		return
	case x.stream.kind() == apiproxy.StreamLog:
		if x.write([]byte("\n"+message+"\n")) == nil {
			_ = flush()
		}
	}
	x.abort()
}

// sentence returns why the stream was cut, for the person.
func (x *exchange) sentence(why cut) string {
	return "tailplane: " + why.reason + " (audit id " + x.id + ")"
}

// eventFrames follows the events of a watch without a change, to know whether the client has whole ones only. One
// goroutine calls passed; isWhole is safe for concurrent use.
type eventFrames struct {
	mu     sync.Mutex
	proto  bool
	json   bool
	depth  int // of JSON objects and arrays
	quoted bool
	escape bool
	head   []byte // of a protobuf frame, while it is not complete
	rest   uint32 // bytes of the current protobuf frame that have not passed
	cbor   *cborItems
}

// newEventFrames returns the frames of a response with that Content-Type. The end of any other stream than JSON, protobuf
// and CBOR is not known.
func newEventFrames(contentType string) *eventFrames {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		media = ""
	}
	f := &eventFrames{proto: media == "application/vnd.kubernetes.protobuf", json: media == "application/json"}
	if media == "application/cbor-seq" {
		f.cbor = &cborItems{}
	}
	return f
}

// known reports whether an event can be written into the stream.
func (f *eventFrames) known() bool { return f.proto || f.json || f.cbor != nil }

// errorEvent returns the event that ends the watch with a Status.
func (f *eventFrames) errorEvent(s codec.Status) []byte {
	if f.cbor != nil {
		return appendCBORError(nil, s)
	}
	return codec.AppendFrame(nil, codec.AppendError(nil, f.proto, &s), f.proto)
}

// isWhole reports whether the last event has passed completely.
func (f *eventFrames) isWhole() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cbor != nil {
		return f.cbor.isWhole()
	}
	return f.depth == 0 && f.rest == 0 && len(f.head) == 0
}

// passed takes the next bytes of the stream.
func (f *eventFrames) passed(b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.proto:
		f.passedProto(b)
	case f.cbor != nil:
		f.cbor.passed(b)
	case f.json:
		for _, c := range b {
			f.passedJSON(c)
		}
	}
}

func (f *eventFrames) passedJSON(c byte) {
	switch {
	case f.escape:
		f.escape = false
	case f.quoted:
		f.escape, f.quoted = c == '\\', c != '"'
	case c == '"':
		f.quoted = true
	case c == '{' || c == '[':
		f.depth++
	case (c == '}' || c == ']') && f.depth > 0:
		f.depth--
	}
}

// passedProto follows frames of a length in four bytes, the highest first, and as many bytes.
func (f *eventFrames) passedProto(b []byte) {
	for len(b) > 0 {
		if f.rest > 0 {
			n := min(int(f.rest), len(b))
			f.rest -= uint32(n)
			b = b[n:]
			continue
		}
		n := min(4-len(f.head), len(b))
		f.head, b = append(f.head, b[:n]...), b[n:]
		if len(f.head) == 4 {
			f.rest, f.head = binary.BigEndian.Uint32(f.head), f.head[:0]
		}
	}
}
