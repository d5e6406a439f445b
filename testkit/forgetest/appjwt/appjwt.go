// Package appjwt verifies the JWT of a GitHub App as GitHub does, for GitHubFake. Only the signature proves the
// identity (law 1).
package appjwt

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// Read returns the App of a JWT, verified with the keys of all Apps. Otherwise bad is the reason why GitHub rejects
// it. The rules are those of "Generating a JSON Web Token (JWT) for a GitHub App": RS256, iat not in the future, and
// exp at most 10 minutes ahead.
func Read(text string, apps map[int64]*rsa.PublicKey, at time.Time) (app int64, bad string) {
	const unread = "A JSON web token could not be decoded"
	parts := strings.Split(text, ".")
	var raw [3][]byte
	for i, p := range parts {
		var err error
		if raw[i], err = base64.RawURLEncoding.DecodeString(p); err != nil {
			return 0, unread
		}
	}
	var head struct{ Alg, Typ string }
	var claims struct {
		Iat, Exp int64
		Iss      json.RawMessage
	}
	if json.Unmarshal(raw[0], &head) != nil || head.Alg != "RS256" || json.Unmarshal(raw[1], &claims) != nil {
		return 0, unread
	}
	app, _ = strconv.ParseInt(strings.Trim(string(claims.Iss), `"`), 10, 64)
	key, ok := apps[app]
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	now := at.Unix()
	switch {
	case !ok:
		return 0, "Integration not found"
	case rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], raw[2]) != nil:
		return 0, unread
	case claims.Iat == 0 || claims.Iat > now:
		return 0, "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued"
	case claims.Exp <= now:
		return 0, "'Expiration time' claim ('exp') must be a numeric value representing the future time at which the assertion expires"
	case claims.Exp > now+600:
		return 0, "'Expiration time' claim ('exp') is too far in the future"
	}
	return app, ""
}
