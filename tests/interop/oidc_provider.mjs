// oidc-provider of npm as the authorization server of a mounted server: `oidc_provider.mjs PORT RESOURCE`. Its own pages
// for development sign people in, and it rotates the refresh tokens of public clients and ends all of a grant's tokens
// when one is used twice. It writes each event that a test reads as a line.
import Provider from "oidc-provider";

const [port, resource] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
  clientDefaults: { grant_types: ["authorization_code", "refresh_token"], token_endpoint_auth_method: "none" },
  features: {
    devInteractions: { enabled: true },
    registration: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: (ctx, indicator) => {
        if (indicator !== resource) throw new Error(`an unknown resource: ${indicator}`);
        return { scope: "notes:read", audience: resource, accessTokenFormat: "jwt", accessTokenTTL: 5 };
      },
    },
  },
  issueRefreshToken: () => true,
  rotateRefreshToken: true,
  pkce: { required: () => true },
  ttl: { Grant: 3600, Session: 3600, Interaction: 600, RefreshToken: 3600, AccessToken: 5, IdToken: 600 },
});
for (const event of ["grant.success", "grant.error", "grant.revoked"]) {
  provider.on(event, (ctx, error) => {
    const why = error instanceof Error ? ` ${error.error_detail ?? error.message}` : "";
    console.log(`${event} ${ctx.oidc?.params?.grant_type ?? ""}${why}`);
  });
}
provider.listen(Number(port), "127.0.0.1", () => console.log("listening"));
