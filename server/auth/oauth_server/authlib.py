"""Import Authlib, in this module only.

It has no types, and third-party stubs fail where its classes are overridden, so all of it is Any.
"""

import logging
from typing import Any

from authlib.oauth2 import base as _base
from authlib.oauth2 import rfc6749 as _oauth
from authlib.oauth2 import rfc7009 as _revocation
from authlib.oauth2 import rfc7636 as _pkce
from authlib.oauth2 import rfc7662 as _introspection
from authlib.oauth2.rfc6749 import grants as _grants
from authlib.oauth2.rfc6749 import requests as _requests

logging.getLogger("authlib").setLevel(logging.WARNING)  # at debug level it logs the tokens it issues

OAuth2Error = _base.OAuth2Error
AuthorizationServer: Any = _oauth.AuthorizationServer
BaseGrant: Any = _oauth.BaseGrant
TokenEndpointMixin: Any = _oauth.TokenEndpointMixin
AuthorizationCodeGrant: Any = _grants.AuthorizationCodeGrant
ClientCredentialsGrant: Any = _grants.ClientCredentialsGrant
RefreshTokenGrant: Any = _grants.RefreshTokenGrant
CodeChallenge: Any = _pkce.CodeChallenge
RevocationEndpoint: Any = _revocation.RevocationEndpoint
IntrospectionEndpoint: Any = _introspection.IntrospectionEndpoint
BasicOAuth2Payload: Any = _requests.BasicOAuth2Payload
OAuth2Request: Any = _requests.OAuth2Request
