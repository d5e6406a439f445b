package signin

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Session is the name of one of several sign-ins of a device to a cluster: a DNS-1123 label, or ""
// for the default session. Sessions keep the roles of different terminals apart. They are no boundary
// between the processes of a device: each process can use every session.
type Session string

// reservedSessions is the prefix of the sessions of access requests.
const reservedSessions = "req-"

var sessionForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) // RFC 1123

// ParseSession returns s as a Session. The default session has no name, so that each session has
// exactly one.
func ParseSession(s string) (Session, error) {
	switch {
	case s == "":
		return "", nil
	case len(s) > 63 || !sessionForm.MatchString(s):
		return "", fmt.Errorf("%.70q is not the name of a session, such as deploy-1", s)
	case s == "default":
		return "", fmt.Errorf(`the default session has no name, so "default" is not the name of a session`)
	case strings.HasPrefix(s, reservedSessions):
		return "", fmt.Errorf("names of sessions that start with %q belong to access requests", reservedSessions)
	}
	return Session(s), nil
}

// checkSession returns why the session of a stored sign-in is invalid, or nil. The session of an access
// request is its name.
func (s Signin) checkSession() error {
	if s.ByRequest.Name == "" {
		_, err := ParseSession(string(s.Owner.Session))
		return err
	}
	if string(s.Owner.Session) != s.ByRequest.Name || !strings.HasPrefix(s.ByRequest.Name, reservedSessions) || !sessionForm.MatchString(s.ByRequest.Name) {
		return fmt.Errorf("%.70q is not the session of the access request %.70q", string(s.Owner.Session), s.ByRequest.Name)
	}
	return nil
}

// MarshalText implements [encoding.TextMarshaler].
func (s Session) MarshalText() ([]byte, error) { return []byte(s), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
// It accepts what FindSession does.
func (s *Session) UnmarshalText(text []byte) (err error) {
	*s, err = FindSession(string(text))
	return err
}

// FindSession returns s as the Session of a sign-in that exists. Unlike ParseSession, it accepts the name of an access
// request, whose sign-in has that session.
func FindSession(s string) (Session, error) {
	if requestForm.MatchString(s) {
		return Session(s), nil
	}
	return ParseSession(s)
}

// requestForm is the form of the name of an access request.
var requestForm = regexp.MustCompile(`^req-[0-9a-f]{16,40}$`)

// String returns the name for people.
func (s Session) String() string {
	if s == "" {
		return "default"
	}
	return string(s)
}

// A Reason is a person's reason for a sign-in: one line of at most maxReason characters.
type Reason string

const maxReason = 500

// MarshalText implements [encoding.TextMarshaler].
func (r Reason) MarshalText() ([]byte, error) { return []byte(r), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. It removes spaces around the text.
func (r *Reason) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	switch {
	case !utf8.ValidString(s) || strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) }):
		return errors.New("the reason contains characters that cannot be printed in one line")
	case utf8.RuneCountInString(s) > maxReason:
		return fmt.Errorf("the reason has more than %d characters", maxReason)
	}
	*r = Reason(s)
	return nil
}
