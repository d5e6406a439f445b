package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

func pods(n int, member string) *corev1.PodList {
	l := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "48213"}, Items: []corev1.Pod{}}
	l.Kind, l.APIVersion = "PodList", "v1"
	for i := range n {
		var p corev1.Pod
		p.Name, p.Namespace, p.ResourceVersion = fmt.Sprintf("pod-%d", i), "ns-"+member, fmt.Sprint(100+i)
		p.Annotations = map[string]string{"braces": `}]"{[\` + "\n", "name": "not-this"}
		p.Spec.Containers = []corev1.Container{{Name: "c", Image: "img-" + member}}
		l.Items = append(l.Items, p)
	}
	return l
}

func encodeProto(t testing.TB, o runtime.Object) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := protobuf.NewSerializer(nil, nil).Encode(o, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func encodeJSON(t testing.TB, o any) []byte {
	t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

// read takes each item that keep selects and returns the merged list of this one member.
func read(t *testing.T, r io.Reader, f Format, keep func(ns, name string) bool) ([]byte, *ListReader) {
	t.Helper()
	l := NewListReader(r, f)
	if err := l.Open(); err != nil {
		t.Fatal(err)
	}
	h := ListHead{Kind: l.Kind, APIVersion: l.APIVersion, ResourceVersion: "7"}
	h.Meta.Remaining = -1
	var out bytes.Buffer
	late := l.Meta.ResourceVersion == 0
	if f.Proto {
		out.Write(h.AppendProto(nil, l.Rest()))
	} else {
		out.Write(h.AppendJSON(nil, f, l.Columns, late))
	}
	for first := true; ; {
		ok, err := l.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		if !keep(string(l.Namespace), string(l.Name)) {
			if err := l.SkipItem(&out); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := l.SpliceItem(&out, !first); err != nil {
			t.Fatal(err)
		}
		first = false
	}
	if f.Proto {
		out.Write(AppendProtoEnd(nil))
	} else {
		h.Kind, h.APIVersion = l.Kind, l.APIVersion
		out.Write(h.AppendEnd(nil, late))
	}
	return out.Bytes(), l
}

// TestListIsReadByRealDecoders checks that real decoders read the output, whatever the sizes of reads are,
// and that dropped items are missing in both encodings.
func TestListIsReadByRealDecoders(t *testing.T) {
	want := pods(50, "east")
	for _, f := range []Format{{}, {Proto: true}} {
		body := encodeJSON(t, want)
		if f.Proto {
			body = encodeProto(t, want)
		}
		for name, r := range map[string]io.Reader{
			"at once": bytes.NewReader(body), "one byte": iotest.OneByteReader(bytes.NewReader(body)), "with EOF": iotest.DataErrReader(bytes.NewReader(body)),
		} {
			t.Run(fmt.Sprintf("proto=%v %s", f.Proto, name), func(t *testing.T) {
				var seen []string
				out, l := read(t, r, f, func(ns, name string) bool {
					seen = append(seen, ns+"/"+name)
					return !strings.HasSuffix(name, "3")
				})
				switch {
				case l.Meta.ResourceVersion != 48213:
					t.Errorf("l.Meta.ResourceVersion = %v, want 48213", l.Meta.ResourceVersion)
				case l.Kind != "PodList":
					t.Errorf("l.Kind = %q, want %q", l.Kind, "PodList")
				case l.APIVersion != "v1":
					t.Errorf("l.APIVersion = %q, want %q", l.APIVersion, "v1")
				}
				if len(seen) != 50 || seen[7] != "ns-east/pod-7" {
					t.Errorf("saw %q", seen)
				}
				var got corev1.PodList
				if f.Proto {
					if _, _, err := protobuf.NewSerializer(podScheme{}, podScheme{}).Decode(out, nil, &got); err != nil {
						t.Fatal(err)
					}
				} else if err := json.Unmarshal(out, &got); err != nil {
					t.Fatal(err)
				}
				if got.ResourceVersion != "7" || len(got.Items) != 45 {
					t.Fatalf("decoded %d items of %q", len(got.Items), got.ResourceVersion)
				}
				switch {
				case got.Items[3].Name != "pod-4":
					t.Errorf("an item came out: got.Items[3].Name = %q, want %q", got.Items[3].Name, "pod-4")
				case got.Items[3].Annotations["braces"] != want.Items[4].Annotations["braces"]:
					t.Errorf("an item came out: got %q, want %q", got.Items[3].Annotations["braces"], want.Items[4].Annotations["braces"])
				case got.Items[3].Spec.Containers[0].Image != "img-east":
					t.Errorf("an item came out: got %q, want %q", got.Items[3].Spec.Containers[0].Image, "img-east")
				}
			})
		}
	}
}

// podScheme is the part of a scheme that a decoder of pods needs.
type podScheme struct{ runtime.ObjectTyper }

func (podScheme) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	return &corev1.PodList{}, nil
}
func (podScheme) ObjectKinds(runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	return []schema.GroupVersionKind{{Version: "v1", Kind: "PodList"}}, false, nil
}
func (podScheme) Recognizes(schema.GroupVersionKind) bool { return true }

// TestListOfCustomResources reads a list whose resourceVersion and kind follow the items, because a server
// sorts the keys of custom resources.
func TestListOfCustomResources(t *testing.T) {
	body := `{"apiVersion":"x.io/v1","items":[{"apiVersion":"x.io/v1","kind":"W","metadata":{"annotations":{"name":"no"},"managedFields":[{"a":{"name":"no"}}],"name":"a","namespace":"n"},"spec":{"x":[1,{"y":"]"}]}}],"kind":"WList","metadata":{"continue":"","resourceVersion":"77"}}` + "\n"
	out, l := read(t, strings.NewReader(body), Format{}, func(ns, name string) bool { return ns == "n" && name == "a" })
	if l.Meta.ResourceVersion != 77 || l.Kind != "WList" {
		t.Errorf("read %q %+v", l.Kind, l.Meta)
	}
	var got struct {
		Kind, APIVersion string
		Metadata         struct{ ResourceVersion string }
		Items            []struct{ Spec struct{ X []any } }
	}
	switch err := json.Unmarshal(out, &got); {
	case err != nil:
		t.Fatalf("%v; out = %s", err, out)
	case got.Kind != "WList":
		t.Fatalf("got.Kind = %q, want %q; out = %s", got.Kind, "WList", out)
	case got.APIVersion != "x.io/v1":
		t.Fatalf("got.APIVersion = %q, want %q; out = %s", got.APIVersion, "x.io/v1", out)
	case got.Metadata.ResourceVersion != "7":
		t.Fatalf("got.Metadata.ResourceVersion = %q, want %q; out = %s", got.Metadata.ResourceVersion, "7", out)
	case len(got.Items) != 1:
		t.Fatalf("len(got.Items) = %v, want 1; out = %s", len(got.Items), out)
	}
}

// TestListThatBreaksOff checks that input that ends early is an error, at every byte.
func TestListThatBreaksOff(t *testing.T) {
	list := pods(2, "east")
	for _, f := range []Format{{}, {Proto: true}} {
		body := bytes.TrimSpace(encodeJSON(t, list))
		if f.Proto {
			body = encodeProto(t, list)
			body = body[:len(body)-4] // without two empty fields, after which an end is valid
		}
		for n := range len(body) {
			if err := readAll(bytes.NewReader(body[:n]), f); err == nil {
				t.Fatalf("proto=%v: the first %d of %d bytes are accepted as a list", f.Proto, n, len(body))
			}
		}
		if err := readAll(bytes.NewReader(body), f); err != nil {
			t.Fatal(err)
		}
	}
}

func readAll(r io.Reader, f Format) error {
	l := NewListReader(r, f)
	if err := l.Open(); err != nil {
		return err
	}
	for {
		ok, err := l.Next()
		if err != nil || !ok {
			return err
		}
		if err := l.CopyItem(io.Discard); err != nil {
			return err
		}
	}
}

func TestListRefuses(t *testing.T) {
	for why, body := range map[string]string{
		"items twice":           `{"kind":"L","metadata":{"resourceVersion":"1"},"items":[],"items":[]}`,
		"metadata twice":        `{"metadata":{"resourceVersion":"1"},"metadata":{"resourceVersion":"2"},"items":[]}`,
		"no items":              `{"kind":"Status","metadata":{"resourceVersion":"1"}}`,
		"items no array":        `{"metadata":{"resourceVersion":"1"},"items":{}}`,
		"an item no object":     `{"metadata":{"resourceVersion":"1"},"items":[1]}`,
		"brackets that differ":  `{"metadata":{"resourceVersion":"1"},"items":[{"a":[}]}]}`,
		"something behind":      `{"metadata":{"resourceVersion":"1"},"items":[]}{}`,
		"a comma too many":      `{"metadata":{"resourceVersion":"1"},"items":[{},]}`,
		"an opaque version":     `{"metadata":{"resourceVersion":"abc"},"items":[]}`,
		"a version of 70 bits":  `{"metadata":{"resourceVersion":"1180591620717411303424"},"items":[]}`,
		"deeper than JSON goes": `{"items":[` + strings.Repeat(`{"a":`, 10001),
	} {
		if err := readAll(strings.NewReader(body), Format{}); err == nil {
			t.Errorf("%s: is a list", why)
		}
	}
}

// TestListMemory checks that the window holds at most its size and the part of an item up to its name.
func TestListMemory(t *testing.T) {
	big := pods(3, "east")
	big.Items[1].Spec.Containers[0].Image = strings.Repeat("x", 3<<20)
	for _, f := range []Format{{}, {Proto: true}} {
		body := encodeJSON(t, big)
		if f.Proto {
			body = encodeProto(t, big)
		}
		l := NewListReader(bytes.NewReader(body), f)
		if err := forEachItem(l); err != nil {
			t.Fatal(err)
		}
		if len(l.w.buf) > 256<<10 {
			t.Errorf("proto=%v: the window grew to %d bytes for an item of 3 MiB", f.Proto, len(l.w.buf))
		}
	}
}

func forEachItem(l *ListReader) error {
	if err := l.Open(); err != nil {
		return err
	}
	for {
		ok, err := l.Next()
		if err != nil || !ok {
			return err
		}
		if err := l.CopyItem(io.Discard); err != nil {
			return err
		}
	}
}

// TestSpliceEqualsCopy checks that CopyItem and SpliceItem give the same list, for any sequence of dropped items and any
// size of reads.
func TestSpliceEqualsCopy(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 25 {
		var list corev1.PodList
		list.ResourceVersion, list.Kind, list.APIVersion = "48213", "PodList", "v1"
		for i := range random.IntN(60) {
			p := corev1.Pod{}
			p.Name = fmt.Sprint("pod-", i)
			p.Annotations = map[string]string{"note": strings.Repeat("n", random.IntN(2+random.IntN(12_000)))}
			list.Items = append(list.Items, p)
		}
		bodies := [][]byte{encodeJSON(t, &list), encodeProto(t, &list)}
		if pretty, err := json.MarshalIndent(&list, "", "  "); err != nil {
			t.Fatal(err)
		} else {
			bodies = append(bodies, pretty)
		}
		for _, body := range bodies {
			f := Format{Proto: bytes.HasPrefix(body, []byte(magic))}
			drop := random.Uint64() & random.Uint64()
			began := random.IntN(2) == 0 // another field precedes the items
			var want, got bytes.Buffer
			for _, splice := range []bool{false, true} {
				l := NewListReader(&chunkedReader{bytes.NewReader(body), random}, f)
				if err := l.Open(); err != nil {
					t.Fatal(err)
				}
				comma := began
				for i := 0; ; i++ {
					ok, err := l.Next()
					if err != nil {
						t.Fatal(err)
					}
					if !ok {
						break
					}
					switch out := &want; {
					case drop&(1<<(i%64)) != 0 && splice:
						err = l.SkipItem(&got)
					case drop&(1<<(i%64)) != 0:
						err = l.SkipItem(out)
					case splice:
						err = l.SpliceItem(&got, comma)
						comma = true
					default:
						if comma && !f.Proto {
							out.WriteByte(',')
						}
						comma = true
						err = l.CopyItem(out)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			if f.Proto {
				if !bytes.Equal(got.Bytes(), want.Bytes()) {
					t.Fatalf("round %d, protobuf: the bytes differ", round)
				}
				continue
			}
			var a, b bytes.Buffer
			first := "["
			if began {
				first = "[0"
			}
			if err := errors.Join(json.Compact(&a, []byte(first+got.String()+"]")), json.Compact(&b, []byte(first+want.String()+"]"))); err != nil || !bytes.Equal(a.Bytes(), b.Bytes()) {
				t.Fatalf("round %d: the items differ, %d bytes instead of %d: %v", round, a.Len(), b.Len(), err)
			}
		}
	}
}

// chunkedReader is a reader that returns a random number of bytes.
type chunkedReader struct {
	r      io.Reader
	random *rand.Rand
}

func (c *chunkedReader) Read(b []byte) (int, error) {
	return c.r.Read(b[:1+c.random.IntN(len(b))])
}
