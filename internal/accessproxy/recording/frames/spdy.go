package frames

import (
	"encoding/binary"
	"fmt"
	"sync"
)

// Types of control frames (SPDY/3, section 2.6).
const (
	typeSynStream    = 1
	typeSynReply     = 2
	typeRstStream    = 3
	typeSettings     = 4
	typePing         = 6
	typeGoAway       = 7
	typeHeaders      = 8
	typeWindowUpdate = 9

	spdyVersion   = 3
	spdyHeader    = 8 // bytes of a frame's header
	bitSPDYFin    = 0x01
	refusedStream = 3 // a status of RST_STREAM

	maxControlFrame = 8 << 10 // bytes, less than pieceSize; the largest of Kubernetes has about 200
	maxStreamID     = 1<<31 - 1
)

// Bounds of the streams of a connection.
const (
	maxCommandStreams = 5    // exec and attach: one of each channel, ever
	maxPortStreams    = 4096 // port-forward: open at the same time
)

// The values of the header streamType.
var (
	commandTypes = map[string]Channel{"stdin": Stdin, "stdout": Stdout, "stderr": Stderr, "error": Error, "resize": Resize}
	portTypes    = map[string]Channel{"data": Data, "error": Error}
)

// A stream is a SPDY stream that the client has opened.
type stream struct {
	channel Channel
	replied bool // the server has accepted it, so the client reads it, or the end has refused it
	ended   [2]bool
}

// streams are the streams of a connection. Those of exec and attach stay until its end, because the server goes on to write to a stream
// that the client has reset.
type streams struct {
	mu     sync.Mutex
	kind   Kind
	open   map[uint32]*stream
	lastID uint32
}

// add adds the stream that a SYN_STREAM of the client describes.
func (s *streams) add(id uint32, headers map[string]string) (Channel, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	byType, most := commandTypes, maxCommandStreams
	if s.kind == PortForward {
		byType, most = portTypes, maxPortStreams
	}
	ch, ok := byType[headers["streamtype"]]
	switch {
	case !ok:
		return 0, fmt.Errorf("a stream has the type %.40q", headers["streamtype"])
	case id%2 == 0 || id <= s.lastID || id > maxStreamID:
		return 0, fmt.Errorf("a stream has the number %d after %d", id, s.lastID)
	case len(s.open) >= most:
		return 0, fmt.Errorf("more than %d streams are open", most)
	}
	for _, other := range s.open {
		if s.kind != PortForward && other.channel == ch {
			return 0, fmt.Errorf("a second stream has the type %s", ch)
		}
	}
	s.lastID, s.open[id] = id, &stream{channel: ch}
	return ch, nil
}

// channel returns the channel of a stream. For port-forward, it is false for a stream that has ended.
func (s *streams) channel(id uint32) (Channel, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.open[id]; st != nil {
		return st.channel, true
	}
	return 0, false
}

// A change is what a frame means for a stream once it is passed on.
type change struct {
	id      uint32
	replied bool
	fin     bool // of the sender's direction
	reset   bool
}

func (s *streams) apply(from Side, changes []change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		st := s.open[c.id]
		if st == nil {
			continue
		}
		st.replied = st.replied || c.replied
		if c.fin || c.reset {
			st.ended[from] = true
		}
		if c.reset {
			st.ended = [2]bool{true, true}
		}
		if s.kind == PortForward && st.ended[Client] && st.ended[Server] {
			delete(s.open, c.id)
		}
	}
}

// A spdyParser reads the frames of one side.
type spdyParser struct {
	from    Side
	streams *streams
	event   func(Event)
	headers headerReader // of the client

	left    uint64 // bytes of the present data frame that are to come
	id      uint32 // its stream
	fin     bool   // it ends the stream's direction
	goAway  bool
	status  bool // the error stream has carried bytes
	changes []change
}

func (s *spdyParser) refuse(format string, args ...any) error {
	return &ProtocolError{s.from, fmt.Sprintf(format, args...)}
}

func (s *spdyParser) position() position {
	return position{left: s.left, boundary: s.left == 0, closed: s.goAway, status: s.status}
}

func (s *spdyParser) commit() {
	if len(s.changes) > 0 {
		s.streams.apply(s.from, s.changes)
		s.changes = s.changes[:0]
	}
}

func spdyLength(p []byte) int { return int(p[5])<<16 | int(p[6])<<8 | int(p[7]) }

func (s *spdyParser) need(p []byte) int {
	n := spdyHeader
	if len(p) >= spdyHeader && p[0]&0x80 != 0 {
		n += spdyLength(p)
	}
	return max(n-len(p), 1)
}

func (s *spdyParser) step(p []byte) (int, error) {
	if s.left > 0 {
		return s.payload(p), nil
	}
	if len(p) < spdyHeader {
		return 0, nil
	}
	if p[0]&0x80 == 0 {
		if err := s.dataFrame(p); err != nil {
			return 0, err
		}
		return spdyHeader, nil
	}
	size := spdyLength(p)
	switch version := binary.BigEndian.Uint16(p) & 0x7fff; {
	case version != spdyVersion:
		return 0, s.refuse("a frame has the version %d", version)
	case size > maxControlFrame:
		return 0, s.refuse("a control frame has %d bytes", size)
	case len(p) < spdyHeader+size:
		return 0, nil
	}
	if err := s.controlFrame(binary.BigEndian.Uint16(p[2:]), p[4], p[spdyHeader:spdyHeader+size]); err != nil {
		return 0, s.refuse("%v", err)
	}
	return spdyHeader + size, nil
}

// dataFrame reads the header of a data frame.
func (s *spdyParser) dataFrame(p []byte) error {
	id, flags := binary.BigEndian.Uint32(p), p[4]
	if id == 0 || flags&^bitSPDYFin != 0 {
		return s.refuse("a data frame has the stream %d and the flags %#x", id, flags)
	}
	if _, known := s.streams.channel(id); !known && s.streams.kind != PortForward {
		return s.refuse("a data frame has the stream %d, which the client has not opened", id)
	}
	s.id, s.left, s.fin = id, uint64(spdyLength(p)), flags&bitSPDYFin != 0
	if s.left == 0 {
		s.endOfData()
	}
	return nil
}

func (s *spdyParser) payload(p []byte) int {
	n := int(min(s.left, uint64(len(p))))
	if n == 0 {
		return 0
	}
	if ch, known := s.streams.channel(s.id); known {
		s.status = s.status || ch == Error
		s.event(Event{Type: Bytes, From: s.from, Channel: ch, Stream: s.id, Data: p[:n]})
	}
	if s.left -= uint64(n); s.left == 0 {
		s.endOfData()
	}
	return n
}

func (s *spdyParser) endOfData() {
	if s.fin {
		s.end(change{id: s.id, fin: true})
	}
}

// end notes that a stream has ended.
func (s *spdyParser) end(c change) {
	if ch, known := s.streams.channel(c.id); known {
		s.changes = append(s.changes, c)
		s.event(Event{Type: Closed, From: s.from, Channel: ch, Stream: c.id, Reset: c.reset})
	}
}

// controlForms has the control frames: the bytes of the payload, or of its part before headers and settings, and the flags that may be set.
var controlForms = map[uint16]struct {
	size  int
	fixed bool
	flags byte
}{
	typeSynStream:    {10, false, bitSPDYFin},
	typeSynReply:     {4, false, bitSPDYFin},
	typeHeaders:      {4, false, bitSPDYFin},
	typeSettings:     {4, false, bitSPDYFin}, // the bit means: clear what was set before
	typeRstStream:    {8, true, 0},
	typePing:         {4, true, 0},
	typeGoAway:       {8, true, 0},
	typeWindowUpdate: {8, true, 0},
}

// controlFrame reads a control frame. The library of the servers does not compare most lengths with what it reads, so a length that is
// wrong would hide frames.
func (s *spdyParser) controlFrame(kind uint16, flags byte, p []byte) error {
	size := len(p)
	form, known := controlForms[kind]
	switch {
	case !known:
		return fmt.Errorf("a control frame has the type %d", kind)
	case size < form.size || form.fixed && size != form.size:
		return fmt.Errorf("a control frame of the type %d has %d bytes", kind, size)
	case flags&^form.flags != 0:
		return fmt.Errorf("a control frame of the type %d has the flags %#x", kind, flags)
	}
	id := binary.BigEndian.Uint32(p)
	switch kind {
	case typeSynStream:
		return s.synStream(id, flags, p)
	case typeSynReply:
		if s.from == Client {
			return fmt.Errorf("the client answers the stream %d, but the server opens none", id)
		}
		s.changes = append(s.changes, change{id: id, replied: true, fin: flags&bitSPDYFin != 0})
	case typeHeaders:
		return s.moreHeaders(id, flags, p)
	case typeRstStream:
		s.end(change{id: id, reset: true})
	case typeSettings:
		if uint64(size) != 4+8*uint64(id) { // id is the number of settings here
			return fmt.Errorf("%d settings have %d bytes", id, size)
		}
	case typeGoAway:
		s.goAway = true
	}
	return nil
}

func (s *spdyParser) synStream(id uint32, flags byte, p []byte) error {
	if s.from == Server {
		return fmt.Errorf("the server opens the stream %d", id)
	}
	headers, err := s.headers.parse(p[10:])
	if err != nil {
		return err
	}
	ch, err := s.streams.add(id, headers)
	if err != nil {
		return err
	}
	s.event(Event{Type: Opened, From: s.from, Channel: ch, Stream: id, Port: headers["port"], RequestID: headers["requestid"]})
	if flags&bitSPDYFin != 0 {
		s.end(change{id: id, fin: true})
	}
	return nil
}

// moreHeaders reads a HEADERS frame. The client's are decompressed because later blocks depend on them.
func (s *spdyParser) moreHeaders(id uint32, flags byte, p []byte) error {
	if s.from == Client {
		if _, err := s.headers.parse(p[4:]); err != nil {
			return err
		}
	}
	if flags&bitSPDYFin != 0 {
		s.end(change{id: id, fin: true})
	}
	return nil
}

// appendData appends a data frame with FIN.
func appendData(b []byte, id uint32, data []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, id)
	b = binary.BigEndian.AppendUint32(b, bitSPDYFin<<24|uint32(len(data)))
	return append(b, data...)
}

// appendControl appends a control frame with two numbers.
func appendControl(b []byte, kind uint16, first, second uint32) []byte {
	b = binary.BigEndian.AppendUint16(b, 0x8000|spdyVersion)
	b = binary.BigEndian.AppendUint16(b, kind)
	b = binary.BigEndian.AppendUint32(b, 8)
	b = binary.BigEndian.AppendUint32(b, first)
	return binary.BigEndian.AppendUint32(b, second)
}
