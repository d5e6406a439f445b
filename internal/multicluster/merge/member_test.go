package merge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// memberStore is a cluster that implements the contract of lists and watches. Its only state is a history of
// changes. It answers like an API server, in the requested encoding.
type memberStore struct {
	name string

	mu        sync.Mutex
	rv        uint64
	now       map[string]*corev1.ConfigMap
	history   []change
	compacted uint64 // earlier positions have expired
	down      bool
	refuse    *codec.Status // its response to every request
	hang      bool          // it never responds
	changed   chan struct{}
	streams   map[*io.PipeWriter]bool
	requests  []MemberRequest
	old       bool // it does not support initial events
	limitless bool // it returns everything instead of a page, as with resourceVersion=0
}

type change struct {
	rv   uint64
	typ  string
	key  string
	what *corev1.ConfigMap
}

func newMemberStore(name string, rv uint64) *memberStore {
	return &memberStore{name: name, rv: rv, compacted: rv, now: map[string]*corev1.ConfigMap{}, changed: make(chan struct{}), streams: map[*io.PipeWriter]bool{}}
}

func (s *memberStore) record(typ, ns, name, value string, step uint64) {
	s.rv += step
	key := ns + "/" + name
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, ResourceVersion: fmt.Sprint(s.rv)}, Data: map[string]string{"value": value, "member": s.name}}
	o.Kind, o.APIVersion = "ConfigMap", "v1"
	s.history = append(s.history, change{s.rv, typ, key, o})
	if typ == "DELETED" {
		delete(s.now, key)
	} else {
		s.now[key] = o
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// set creates or updates an object and increases the resourceVersion by step.
func (s *memberStore) set(ns, name, value string, step uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	typ := "ADDED"
	if s.now[ns+"/"+name] != nil {
		typ = "MODIFIED"
	}
	s.record(typ, ns, name, value, step)
}

func (s *memberStore) remove(ns, name string, step uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now[ns+"/"+name] != nil {
		s.record("DELETED", ns, name, "", step)
	}
}

func (s *memberStore) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compacted = s.rv
}

// cut ends all streams: cleanly, or with an error.
func (s *memberStore) cut(err error) {
	s.mu.Lock()
	streams := maps.Clone(s.streams)
	s.mu.Unlock()
	for w := range streams {
		w.CloseWithError(err)
	}
}

func (s *memberStore) configure(down bool) {
	s.mu.Lock()
	s.down = down
	s.mu.Unlock()
	if down {
		s.cut(errors.New("connection reset"))
	}
}

// at returns the objects at a position.
func (s *memberStore) at(rv uint64) map[string]*corev1.ConfigMap {
	m := map[string]*corev1.ConfigMap{}
	for _, c := range s.history {
		if c.rv > rv {
			break
		}
		if c.typ == "DELETED" {
			delete(m, c.key)
		} else {
			m[c.key] = c.what
		}
	}
	return m
}

var (
	errGone     = &codec.Status{Code: 410, Reason: codec.ReasonExpired, Message: "too old resource version"}
	errTooLarge = &codec.Status{Code: 504, Reason: codec.ReasonTimeout, Cause: codec.CauseTooLarge, Message: "Too large resource version"}
)

func (s *memberStore) fetch(ctx context.Context, a MemberRequest, f codec.Format) (*Body, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, a)
	if s.hang {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return nil, ctx.Err()
	}
	if s.down {
		return nil, errors.New("connection refused")
	}
	if s.refuse != nil {
		return nil, s.refuse
	}
	var rv uint64
	if a.RV != "" {
		var err error
		if rv, err = strconv.ParseUint(a.RV, 10, 64); err != nil {
			return nil, fmt.Errorf("a member received a request for %q", a.RV)
		}
	}
	if a.isInitial() && s.old {
		return nil, &codec.Status{Code: 422, Reason: "Invalid", Message: "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"}
	}
	if a.Watch {
		return s.watch(ctx, a, f, rv), nil
	}
	return s.list(a, f, rv)
}

func (s *memberStore) list(a MemberRequest, f codec.Format, rv uint64) (*Body, error) {
	if rv > s.rv {
		return nil, errTooLarge
	}
	have, at, from := s.now, s.rv, ""
	if a.Match == "Exact" {
		if rv < s.compacted {
			return nil, errGone
		}
		have, at = s.at(rv), rv
	}
	if a.Continue != "" {
		rvText, key, ok := strings.Cut(a.Continue, ":")
		n, err := strconv.ParseUint(rvText, 10, 64)
		if !ok || err != nil {
			return nil, &codec.Status{Code: 400, Reason: codec.ReasonBadRequest, Message: "continue key is not valid"}
		}
		if n != 0 && n < s.compacted {
			expired := *errGone
			expired.Continue = "0:" + key
			return nil, &expired
		}
		if from = key; n != 0 {
			have, at = s.at(n), n
		}
	}
	l := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(at)}, Items: []corev1.ConfigMap{}}
	l.Kind, l.APIVersion = "ConfigMapList", "v1"
	for _, key := range slices.Sorted(maps.Keys(have)) {
		if key < from || a.Name != "" && key != a.Namespace+"/"+a.Name {
			continue
		}
		if a.Limit > 0 && int64(len(l.Items)) == a.Limit && !s.limitless {
			l.Continue = fmt.Sprintf("%d:%s", at, key)
			break
		}
		l.Items = append(l.Items, *have[key])
	}
	if a.Names {
		f = codec.Format{Shape: codec.ShapeMetadata}
	}
	if f.Proto {
		return &Body{io.NopCloser(bytes.NewReader(encode(l, true))), f}, nil
	}
	for i := range l.Items {
		l.Items[i].TypeMeta = metav1.TypeMeta{} // as in a real list
	}
	return &Body{io.NopCloser(bytes.NewReader(encode(l, false))), f}, nil
}

func encode(o runtime.Object, proto bool) []byte {
	var b bytes.Buffer
	if proto {
		if err := protobuf.NewSerializer(nil, nil).Encode(o, &b); err != nil {
			panic(err)
		}
		return b.Bytes()
	}
	if err := json.NewEncoder(&b).Encode(o); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func encodeEvent(typ string, o runtime.Object, proto bool) []byte {
	ev := metav1.WatchEvent{Type: typ, Object: runtime.RawExtension{Raw: bytes.TrimSpace(encode(o, false))}}
	if !proto {
		b, err := json.Marshal(ev)
		if err != nil {
			panic(err)
		}
		return codec.AppendFrame(nil, b, false)
	}
	ev.Object.Raw = encode(o, true)
	b, err := ev.Marshal()
	if err != nil {
		panic(err)
	}
	return codec.AppendFrame(nil, b, true)
}

func mark(rv uint64, end bool) *corev1.ConfigMap {
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: fmt.Sprint(rv)}}
	o.Kind, o.APIVersion = "ConfigMap", "v1"
	if end {
		o.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	return o
}

// watch prepares the events that exist now. A goroutine sends the later ones.
func (s *memberStore) watch(ctx context.Context, a MemberRequest, f codec.Format, rv uint64) *Body {
	r, w := io.Pipe()
	s.streams[w] = true
	var first []byte
	matches := func(key string) bool { return a.Name == "" || key == a.Namespace+"/"+a.Name }
	switch {
	case a.isInitial():
		for _, key := range slices.Sorted(maps.Keys(s.now)) {
			if matches(key) {
				first = append(first, encodeEvent("ADDED", s.now[key], f.Proto)...)
			}
		}
		rv = s.rv
		first = append(first, encodeEvent("BOOKMARK", mark(rv, true), f.Proto)...)
	case a.RV == "" || a.RV == "0":
		rv = s.rv
	case rv < s.compacted:
		first = codec.AppendFrame(nil, codec.AppendError(nil, f.Proto, errGone), f.Proto)
	}
	expired := !a.isInitial() && a.RV != "" && rv < s.compacted
	stop := context.AfterFunc(ctx, func() { r.CloseWithError(ctx.Err()) })
	go func() {
		defer stop()
		defer func() {
			s.mu.Lock()
			delete(s.streams, w)
			s.mu.Unlock()
			w.Close()
		}()
		if _, err := w.Write(first); err != nil || expired {
			return
		}
		idle := time.NewTicker(50 * time.Second)
		defer idle.Stop()
		for {
			s.mu.Lock()
			var next []change
			for _, c := range s.history {
				if c.rv > rv {
					next = append(next, c)
				}
			}
			changed, at := s.changed, s.rv
			s.mu.Unlock()
			for _, c := range next {
				rv = c.rv
				if !matches(c.key) {
					continue
				}
				if _, err := w.Write(encodeEvent(c.typ, c.what, f.Proto)); err != nil {
					return
				}
			}
			select {
			case <-changed:
			case <-idle.C:
				rv = max(rv, at)
				if _, err := w.Write(encodeEvent("BOOKMARK", mark(rv, false), f.Proto)); err != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return &Body{r, f}
}
