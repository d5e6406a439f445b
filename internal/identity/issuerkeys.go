package identity

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/tailplane/tailplane/internal/problem"
)

const (
	keysFresh = 10 * time.Minute // maximum age before the keys are fetched again
	keysGood  = time.Hour        // maximum age if the issuer does not answer

	fetchTime  = 5 * time.Second
	keysPause  = time.Minute     // minimum time between two fetches while there are valid keys, whatever key IDs the tokens have
	firstPause = 5 * time.Second // the same while there are none; doubled up to keysPause

	maxAnswer = 256 << 10 // maximum bytes of one response of the issuer
	maxKeys   = 32

	minRSA, maxRSA = 2048, 8192 // bits
)

// keys caches the signing keys of an issuer. It fetches them when a token needs one, with one
// request at a time. Anyone can send tokens with unknown key IDs, so they cause at most one fetch a
// minute.
type keys struct {
	load func(context.Context) (map[string]verificationKey, error) // reads the keys of the issuer, by ID
	now  func() time.Time

	mu       sync.Mutex
	byID     map[string]verificationKey // never modified after it is stored
	fetched  time.Time                  // time of the last successful fetch; zero: never
	next     time.Time                  // no fetch before this time
	retry    time.Duration              // pause after the next failed fetch without valid keys
	err      error                      // error of the last fetch
	fetching chan struct{}              // closed when the current fetch ends; nil if there is none
}

func newKeys(load func(context.Context) (map[string]verificationKey, error), now func() time.Time) *keys {
	return &keys{load: load, now: now, retry: firstPause}
}

// A verificationKey is a public key of an issuer, with the algorithms that it may verify.
type verificationKey struct {
	public     any
	algorithms []jose.SignatureAlgorithm
}

// withoutRedirects returns a copy of client that follows no redirects.
func withoutRedirects(client *http.Client) *http.Client {
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	own.Jar = nil
	return &own
}

var errUnknownKey = errors.New("the issuer has no such key")

// find returns the key with that ID. If the issuer cannot be reached, the error is a problem with
// the code identity_unavailable.
func (k *keys) find(ctx context.Context, id string) (verificationKey, error) {
	if id == "" {
		return verificationKey{}, errors.New("the token has no key id")
	}
	for {
		k.mu.Lock()
		now := k.now()
		age, good := now.Sub(k.fetched), k.isGood(now)
		key, known := k.byID[id]
		switch asking := k.fetching; {
		case good && known && (age < keysFresh || asking != nil || now.Before(k.next)):
			k.mu.Unlock()
			return key, nil
		case asking != nil:
			k.mu.Unlock()
			select {
			case <-asking:
			case <-ctx.Done():
				return verificationKey{}, errIssuerUnavailable(ctx.Err())
			}
		case now.Before(k.next):
			err := k.err
			k.mu.Unlock()
			if good {
				return verificationKey{}, errUnknownKey
			}
			return verificationKey{}, errIssuerUnavailable(err)
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
	var byID map[string]verificationKey
	err := errors.New("the request was not answered")
	defer func() { k.store(byID, err) }()
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	byID, err = k.load(ctx)
}

// store stores the result of a fetch. After an error, the previous keys stay.
func (k *keys) store(byID map[string]verificationKey, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	if err == nil {
		k.byID, k.fetched = byID, now
	}
	k.err = err
	if k.isGood(now) {
		k.next, k.retry = now.Add(keysPause), firstPause
	} else {
		k.next, k.retry = now.Add(k.retry), min(k.retry*2, keysPause)
	}
	close(k.fetching)
	k.fetching = nil
}

// isGood reports whether the keys of the last successful fetch are still accepted. The caller must hold mu.
func (k *keys) isGood(now time.Time) bool {
	return !k.fetched.IsZero() && now.Sub(k.fetched) < keysGood
}

func errIssuerUnavailable(cause error) error {
	return problem.New(problem.IdentityUnavailable, "This server cannot fetch the keys that verify tokens.",
		"Try again in a moment.").WithRetryAfter(time.Second).WithCause(cause)
}

// A keySet is a JSON Web Key Set.
type keySet struct {
	Keys []json.RawMessage `json:"keys"`
}

// byID returns the keys that parse returns. parse returns nil for a key of a type that is not used here.
func (s keySet) byID(parse func(raw []byte) (string, *verificationKey)) (map[string]verificationKey, error) {
	if len(s.Keys) > maxKeys {
		return nil, fmt.Errorf("the issuer has %d keys, more than %d", len(s.Keys), maxKeys)
	}
	byID := map[string]verificationKey{}
	for _, raw := range s.Keys {
		id, key := parse(raw)
		if key == nil {
			continue
		}
		if _, twice := byID[id]; twice {
			return nil, fmt.Errorf("the issuer has two keys %.40q", id)
		}
		byID[id] = *key
	}
	if len(byID) == 0 {
		return nil, errors.New("the issuer has no usable signing key")
	}
	return byID, nil
}

// signingKey returns a key that is valid for RS256 signatures, and its ID.
func signingKey(raw []byte) (string, *rsa.PublicKey) {
	var j jose.JSONWebKey
	if err := j.UnmarshalJSON(raw); err != nil || j.KeyID == "" || j.Use != "" && j.Use != "sig" ||
		j.Algorithm != "" && j.Algorithm != string(jose.RS256) {
		return "", nil
	}
	key, ok := j.Key.(*rsa.PublicKey)
	if !ok || key.N.BitLen() < minRSA || key.N.BitLen() > maxRSA || key.E < 3 || key.E%2 == 0 {
		return "", nil
	}
	return j.KeyID, key
}

// getJSON fetches and decodes one JSON document.
func getJSON(ctx context.Context, client *http.Client, from string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	res, err := client.Do(req)
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
