package identity

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/tailplane/tailplane/internal/problem"
)

const (
	discoveryPath = "/.well-known/openid-configuration"

	keysFresh = 10 * time.Minute // maximum age before the keys are fetched again
	keysGood  = time.Hour        // maximum age if the issuer does not answer

	fetchTime  = 5 * time.Second
	firstPause = 5 * time.Second // minimum time between two fetches; doubled while the keys do not change
	maxPause   = time.Minute

	maxAnswer = 256 << 10 // maximum bytes of one response of the issuer
	maxKeys   = 32

	minRSA, maxRSA = 2048, 8192 // bits
)

// keys caches the signing keys of an issuer. It fetches them when a token needs one, with one
// request at a time. Tokens with unknown key IDs cause at most one fetch per pause.
type keys struct {
	issuer string
	client *http.Client
	now    func() time.Time

	mu       sync.Mutex
	byID     map[string]*rsa.PublicKey // never modified after it is stored
	fetched  time.Time                 // time of the last successful fetch; zero: never
	next     time.Time                 // no fetch before this time
	pause    time.Duration
	err      error         // error of the last fetch
	fetching chan struct{} // closed when the current fetch ends; nil if there is none
}

func newKeys(issuer string, client *http.Client, now func() time.Time) *keys {
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	own.Jar = nil
	return &keys{issuer: issuer, client: &own, now: now}
}

var errUnknownKey = errors.New("the issuer has no such key")

// find returns the key with that ID. If the issuer cannot be reached, the error is a problem with
// the code identity_unavailable.
func (k *keys) find(ctx context.Context, id string) (*rsa.PublicKey, error) {
	if id == "" {
		return nil, errors.New("the token has no key id")
	}
	for {
		k.mu.Lock()
		now := k.now()
		age := now.Sub(k.fetched)
		good := !k.fetched.IsZero() && age < keysGood
		key := k.byID[id]
		switch asking := k.fetching; {
		case good && key != nil && (age < keysFresh || asking != nil || now.Before(k.next)):
			k.mu.Unlock()
			return key, nil
		case asking != nil:
			k.mu.Unlock()
			select {
			case <-asking:
			case <-ctx.Done():
				return nil, errIssuerUnavailable(ctx.Err())
			}
		case now.Before(k.next):
			err := k.err
			k.mu.Unlock()
			if good {
				return nil, errUnknownKey
			}
			return nil, errIssuerUnavailable(err)
		default:
			k.fetching = make(chan struct{})
			k.mu.Unlock()
			// Other callers wait for this fetch too, so it must not end with this caller's context.
			k.refresh(context.WithoutCancel(ctx))
		}
	}
}

// refresh fetches the keys. It always ends the wait of the other callers, even after a panic.
func (k *keys) refresh(ctx context.Context) {
	var byID map[string]*rsa.PublicKey
	err := errors.New("the request was not answered")
	defer func() { k.store(byID, err) }()
	byID, err = k.fetch(ctx)
}

// store stores the result of a fetch. After an error, the previous keys stay.
func (k *keys) store(byID map[string]*rsa.PublicKey, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	fresh := err == nil && !sameKeys(k.byID, byID)
	if err == nil {
		k.byID, k.fetched = byID, now
	}
	k.err = err
	if k.pause = min(k.pause*2, maxPause); fresh || k.pause == 0 {
		k.pause = firstPause
	}
	k.next = now.Add(k.pause)
	close(k.fetching)
	k.fetching = nil
}

func sameKeys(a, b map[string]*rsa.PublicKey) bool {
	return maps.EqualFunc(a, b, func(x, y *rsa.PublicKey) bool { return x.Equal(y) })
}

func errIssuerUnavailable(cause error) error {
	return problem.New(problem.IdentityUnavailable, "This server cannot fetch the keys that verify tokens.",
		"Try again in a moment.").WithRetryAfter(time.Second).WithCause(cause)
}

// fetch returns the current keys of the issuer. It rejects a key URL outside the issuer's origin.
func (k *keys) fetch(ctx context.Context) (map[string]*rsa.PublicKey, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	var about struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := k.get(ctx, strings.TrimSuffix(k.issuer, "/")+discoveryPath, &about); err != nil {
		return nil, err
	}
	if about.Issuer != k.issuer {
		return nil, fmt.Errorf("the issuer has another name: %.100q", about.Issuer)
	}
	if !sameOrigin(about.Keys, k.issuer) {
		return nil, fmt.Errorf("the issuer's keys have another origin: %.100q", about.Keys)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := k.get(ctx, about.Keys, &set); err != nil {
		return nil, err
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("the issuer has %d keys, more than %d", len(set.Keys), maxKeys)
	}
	byID := map[string]*rsa.PublicKey{}
	for _, raw := range set.Keys {
		id, key := signingKey(raw)
		if key == nil {
			continue // a key of a type that is not used here
		}
		if byID[id] != nil {
			return nil, fmt.Errorf("the issuer has two keys %.40q", id)
		}
		byID[id] = key
	}
	if len(byID) == 0 {
		return nil, errors.New("the issuer has no RSA signing key")
	}
	return byID, nil
}

// signingKey returns a key that is valid for RS256 signatures, and its ID.
func signingKey(raw []byte) (string, *rsa.PublicKey) {
	var j jose.JSONWebKey
	if err := j.UnmarshalJSON(raw); err != nil || j.KeyID == "" || j.Use != "" && j.Use != "sig" || j.Algorithm != "" && j.Algorithm != string(jose.RS256) {
		return "", nil
	}
	key, ok := j.Key.(*rsa.PublicKey)
	if !ok || key.N.BitLen() < minRSA || key.N.BitLen() > maxRSA || key.E < 3 || key.E%2 == 0 {
		return "", nil
	}
	return j.KeyID, key
}

// get fetches and decodes one JSON document.
func (k *keys) get(ctx context.Context, from string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	res, err := k.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", from, res.Status)
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if len(b) > maxAnswer {
		return fmt.Errorf("%s: more than %d bytes", from, maxAnswer)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return nil
}

func sameOrigin(a, b string) bool {
	x, err := url.Parse(a)
	if err != nil {
		return false
	}
	y, err := url.Parse(b)
	return err == nil && x.Scheme == y.Scheme && x.Host == y.Host && x.User == nil
}
