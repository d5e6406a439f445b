package gossip

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/util/strictjson"
)

// Facts are what an access server announces about itself.
type Facts struct {
	ClusterID   string
	ClusterName string // DNS-1123
	Node        string // stable node id
	Host        string // name in the tailnet, without the final dot
	IPs         []netip.Addr
	Port        uint16 // of gossip
	URL         string // base of the sign-in API
	APIEndpoint string // URL of the Kubernetes API
	APIPort     uint16
	Proxy       string // URL of the cluster's access proxy; "": none
	CAHash      string // "sha256:" and hex
	Labels      map[string]string
	Key         httpapi.PublicKey
	Software    string // version
	// Audit are statements about the audit logs of this server and of other processes of its cluster, at most 12, the most important first.
	Audit []audit.SignedHead

	// PrevKey is the cluster's previous key. PrevSig is that key's signature over Rekeying.
	PrevKey httpapi.PublicKey
	PrevSig []byte
}

// A Status is whether a server announces itself as running or as leaving.
type Status string

// The statuses. Any other value comes from a newer version and means up.
const (
	Up   Status = "up"
	Left Status = "left"
)

// A Record is what a member announces about itself: facts, numbered and signed by the cluster's key. It is immutable.
type Record struct {
	Facts
	Order
	Status Status
	Signed Signed // as sent
	proven bool   // the signature was verified
}

// A Signed is a record on the wire. The payload is kept and relayed byte for byte. So two builds need not agree on a canonical form, and
// fields that only newer versions know survive.
type Signed struct{ Payload, Signature []byte }

func (s Signed) equal(t Signed) bool {
	return bytes.Equal(s.Payload, t.Payload) && bytes.Equal(s.Signature, t.Signature)
}

const (
	recordForm = "tailplane-record-v1\x00"
	rekeyForm  = "tailplane-rekey-v1\x00"
)

// signedMessage returns the bytes that the cluster's key signs for a payload.
func signedMessage(payload []byte) []byte { return append([]byte(recordForm), payload...) }

// RekeyMessage returns the bytes that the old key of a cluster signs to hand over to the new one.
func RekeyMessage(cluster string, key httpapi.PublicKey) []byte {
	return []byte(rekeyForm + cluster + key.String())
}

// Limits of a record.
const (
	maxPayload   = 4 << 10
	maxLabels    = 32
	maxAddresses = 8
)

var (
	clusterID = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?$`)
	caHash    = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	software  = regexp.MustCompile(`^[A-Za-z0-9.+_-]{0,64}$`)
	labelName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
)

// isNode reports whether s can be a stable node id.
func isNode[T string | []byte](s T) bool {
	for i := range len(s) {
		switch b := s[i]; {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9', b == '-', b == '_':
		default:
			return false
		}
	}
	return len(s) > 0 && len(s) <= 64
}

func isLabelKey(s string) bool {
	prefix, name, ok := strings.Cut(s, "/")
	if !ok {
		prefix, name = "", s
	}
	return labelName.MatchString(name) && (!ok || isDNSName(prefix))
}

type wireCluster struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

type wireRecord struct {
	V           int               `json:"v"`
	Cluster     wireCluster       `json:"cluster"`
	Node        string            `json:"node"`
	Host        string            `json:"host"`
	IPs         []netip.Addr      `json:"ips"`
	Port        uint16            `json:"port"`
	URL         string            `json:"url"`
	APIEndpoint string            `json:"apiEndpoint"`
	APIPort     uint16            `json:"apiPort"`
	Proxy       string            `json:"proxy,omitempty"` // servers of earlier versions ignore it
	CAHash      string            `json:"caHash,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Status      Status            `json:"status"`
	Generation  uint64            `json:"generation"`
	Version     uint64            `json:"version"`
	Key         string            `json:"key"`
	Software    string            `json:"software,omitempty"`
	PrevKey     string            `json:"prevKey,omitempty"`
	PrevSig     []byte            `json:"prevSig,omitempty"`
	// Servers of earlier versions ignore it.
	Audit []audit.SignedHead `json:"audit,omitempty"`
}

// Seal numbers and signs facts. It returns an error for a record that other servers would refuse. Statements about audit logs that do not fit
// into a record are left out, the last ones first.
func Seal(f Facts, o Order, s Status, sign func([]byte) []byte) (*Record, error) {
	payload, err := json.Marshal(wireRecord{1, wireCluster{f.ClusterID, f.ClusterName}, f.Node, f.Host, f.IPs, f.Port, f.URL, f.APIEndpoint, f.APIPort, f.Proxy,
		f.CAHash, f.Labels, s, o.Generation, o.Version, f.Key.String(), f.Software, f.PrevKey.String(), f.PrevSig, f.Audit})
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	if len(f.Audit) > maxLogs || len(f.Audit) > 0 && len(payload) > maxPayload {
		f.Audit = f.Audit[:min(len(f.Audit)-1, maxLogs)]
		return Seal(f, o, s, sign)
	}
	return Open(Signed{payload, sign(signedMessage(payload))})
}

// errSignature reports a record that the key in it did not sign.
var errSignature = errors.New("the signature is not valid")

// Open parses a record and verifies its signature with the key that the record names. Merge decides whether that key is the cluster's key.
func Open(s Signed) (*Record, error) {
	r, err := parse(s)
	if err != nil {
		return nil, err
	}
	if r.proven = r.isSignatureValid(); !r.proven {
		return nil, fmt.Errorf("record: %w", errSignature)
	}
	return r, nil
}

// parse parses a record without verifying its signature. Verification costs more than all other checks, so Merge does it last.
func parse(s Signed) (*Record, error) {
	if len(s.Payload) > maxPayload {
		return nil, fmt.Errorf("record: it has more than %d bytes", maxPayload)
	}
	r := &Record{Signed: s}
	c := &cursor{strictjson.New(s.Payload)}
	if err := r.read(c); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	return r, nil
}

// isSignatureValid reports whether the key that the record names has signed it.
func (r *Record) isSignatureValid() bool {
	return r.proven || ed25519.Verify(r.Key[:], signedMessage(r.Signed.Payload), r.Signed.Signature)
}

func (r *Record) read(c *cursor) error {
	var form uint64
	fields := map[string]any{
		"v":           count{&form, maxVersion},
		"cluster":     map[string]any{"id": &r.ClusterID, "name": &r.ClusterName},
		"node":        &r.Node,
		"host":        &r.Host,
		"ips":         func() error { return c.Array(func() error { return r.readAddress(c) }) },
		"port":        &r.Port,
		"url":         &r.URL,
		"apiEndpoint": &r.APIEndpoint,
		"apiPort":     &r.APIPort,
		"proxy":       &r.Proxy,
		"caHash":      &r.CAHash,
		"labels":      func() error { return c.Object(func(name string) error { return r.readLabel(name, c) }) },
		"status":      (*string)(&r.Status),
		"generation":  count{&r.Generation, maxGeneration},
		"version":     count{&r.Version, maxVersion},
		"key":         &r.Key,
		"software":    &r.Software,
		"prevKey":     &r.PrevKey,
		"prevSig":     &r.PrevSig,
		"audit":       func() error { return c.Array(func() error { return r.readHead(c) }) },
	}
	err := c.Object(func(name string) error {
		if err := c.read(fields[name]); err != nil {
			return fmt.Errorf("%.40q: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if form != 1 {
		return fmt.Errorf("its form is %d, but this server supports form 1", form)
	}
	return c.End()
}

func (r *Record) readAddress(c *cursor) error {
	text, err := c.Text()
	if err != nil {
		return err
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" || addr.Is4In6() || len(r.IPs) == maxAddresses {
		return fmt.Errorf("ips: at most %d addresses are allowed", maxAddresses)
	}
	r.IPs = append(r.IPs, addr)
	return nil
}

func (r *Record) readLabel(name string, c *cursor) error {
	value, err := c.Text()
	if err != nil {
		return err
	}
	if !isLabelKey(name) || value != "" && !labelName.MatchString(value) || len(r.Labels) == maxLabels {
		return fmt.Errorf("labels: at most %d Kubernetes labels are allowed", maxLabels)
	}
	if r.Labels == nil {
		r.Labels = map[string]string{}
	}
	r.Labels[name] = value
	return nil
}

// A cursor reads records and messages.
type cursor struct{ strictjson.Cursor }

// A count is the target of an integer from 0 to limit.
type count struct {
	to    *uint64
	limit uint64
}

// read reads a value into target: a pointer, a count, the targets of an object, or a function that reads the value. A nil target skips the
// value.
func (c *cursor) read(target any) (err error) {
	switch to := target.(type) {
	case *string:
		*to, err = c.Text()
	case *uint16:
		*to, err = c.port()
	case *[]byte:
		*to, err = c.Base64()
	case *httpapi.PublicKey:
		*to, err = c.key()
	case count:
		*to.to, err = c.Count(to.limit)
	case map[string]any:
		err = c.Object(func(name string) error { return c.read(to[name]) })
	case func() error:
		err = to()
	default:
		err = c.Skip()
	}
	return err
}

func (c *cursor) port() (uint16, error) {
	n, err := c.Count(1<<16 - 1)
	if err == nil && n == 0 {
		err = errors.New("it is 0")
	}
	return uint16(n), err
}

func (c *cursor) key() (httpapi.PublicKey, error) {
	text, err := c.Text()
	if err != nil {
		return httpapi.PublicKey{}, err
	}
	return httpapi.ParsePublicKey(text)
}

// check validates the fields of a record, independent of the sender. The alphabet of text that people see is safe for a terminal, a page
// and a shell.
func (r *Record) check() error {
	switch {
	case !clusterID.MatchString(r.ClusterID):
		return errors.New("cluster.id is malformed")
	case !isDNSName(r.ClusterName):
		return errors.New("cluster.name is not a DNS-1123 name")
	case !isNode(r.Node):
		return errors.New("node is not a node id")
	case !isDNSName(r.Host):
		return errors.New("host is not a DNS-1123 name")
	case len(r.IPs) == 0:
		return errors.New("ips is missing")
	case r.Port == 0, r.APIPort == 0:
		return errors.New("a port is missing")
	case r.CAHash != "" && !caHash.MatchString(r.CAHash):
		return errors.New("caHash is malformed")
	case !isDNSLabel(string(r.Status)):
		return errors.New("status is malformed")
	case r.Generation == 0, r.Version == 0:
		return errors.New("generation or version is missing")
	case r.Key.IsZero():
		return errors.New("key is missing")
	case !software.MatchString(r.Software):
		return errors.New("software is malformed")
	}
	return nil
}

// generationAt returns the generation of a server that starts now. It is greater than last, the greatest earlier generation, whatever the
// clock shows.
func generationAt(now time.Time, last uint64) uint64 {
	return min(max(uint64(max(now.Unix(), 1)), last+1), maxGeneration)
}
