"""List the letters of languages by their frequency, and the encodings that their texts come in.

The frequencies were counted in the translations of free programs. An encoding's number is the logarithm of how often it
is met: 0 for the usual ones.
"""

CYRILLIC = (("windows-1251", 0.0), ("koi8-r", -1.0), ("ibm866", -2.0), ("iso-8859-5", -2.0))
UKRAINIAN = (("windows-1251", 0.0), ("koi8-u", -1.0))
CENTRAL = (("windows-1250", 0.0), ("iso-8859-2", -1.0))
WESTERN = (("windows-1252", 2.0),)

ALPHABETS: tuple[tuple[tuple[tuple[str, float], ...], str], ...] = (
    (CYRILLIC, "оеаинтрслвкпдмуязыьйбчгжфцюхшщэъё"),  # Russian
    (UKRAINIAN, "аноиевтрікслдпумязьбйчгцжєхфшюїщґ"),
    (UKRAINIAN, "анркыілсевтядпомцузьэўгбчйшфхжюё"),  # Belarusian
    (CYRILLIC[:1], "аениотрсвдпкзлмъябучгжйфцшщх"),  # Bulgarian
    (CYRILLIC[:1], "аеионртскупдвмзјлбгњчшцљжћхфђѓќѕџ"),  # Serbian, Macedonian
    (CENTRAL, "łżęśąóćńź"),  # Polish
    (CENTRAL, "íářčéýžěšůúóňáťď"),  # Czech
    (CENTRAL, "áčíýéúťžľšóäôňĺďŕ"),  # Slovak
    (CENTRAL, "áéíóöőüúű"),  # Hungarian
    (CENTRAL, "čšžćđ"),  # Croatian, Slovenian
    ((("iso-8859-16", -1.0), ("windows-1250", 0.0)), "ățșîâşţ"),  # Romanian
    ((("windows-1253", 0.0), ("iso-8859-7", -2.0)), "αοετινσρμηπκυςλίγδήέάόχωθύφβώζξψϊΐϋΰ"),
    ((("windows-1254", 0.0),), "ışçüğöâîû"),  # Turkish
    ((("windows-1255", 0.0),), "יותהלמרבנשאקפדסעגםחכטןצזץךף"),
    ((("windows-1256", 0.0),), "اليمرتوةندفعسبحقكجصهأطخذإشّغضزىثئءظؤآ"),
    ((("windows-1256", 0.0),), "انردهتومبشسلزپفخگجعقصحطچآظ"),  # Persian
    ((("windows-1257", 0.0),), "šėųįžąčūę"),  # Lithuanian
    ((("windows-1257", 0.0),), "āēīšļūņķžģč"),  # Latvian
    ((("windows-1258", -1.0),), "\u0301\u0323\u0300ổđưâỡăêôơ\u0309\u0303"),  # Vietnamese
    ((("windows-874", 0.0),), "ารอ่มกนเ้งดลตบสยแวไทขหจคพปูะชำใถุฟโซณผภธ\u0e31\u0e34\u0e35\u0e36\u0e37\u0e47\u0e4c"),
    (WESTERN, "éèàêôîçâùëïœ"),  # French
    (WESTERN, "üäößéå"),  # German
    (WESTERN, "óáíúñé"),  # Spanish
    (WESTERN, "èàòùéì"),  # Italian
    (WESTERN, "ãçáíéóúõêâàº"),  # Portuguese
    (WESTERN, "óàéíèçòúïü"),  # Catalan
    (WESTERN, "äöåøæéõšž"),  # Finnish, Swedish, Danish, Norwegian, Estonian
    (WESTERN, "ðáíóýúæþöé"),  # Icelandic
)
KANA = "".join(map(chr, (*range(0x3041, 0x3094), *range(0x30A1, 0x30F7), 0x30FC)))
JAPANESE = (
    "ーのますでしをンはにルトがせんイるいスたてックれなフシきリさりプラタドデョとァかあアジレバロティブグセコ"
    "こサパオキみエめらくマムポウェ"
)
CHARACTERS = {  # encoding → its most frequent characters
    "gb18030": "的用件文不数在无法为有个中是字一时行出使符名定选项式置表能可到以目标于要或对输和设录指作"
    "将存本列入包示参分进错已据效值类程号器信如接型取命被后新模误令了未过上息我他这人们来大国",
    "big5": "的用檔不案定無在有法使為式數個中時選指目字是設一項出名入以行取示輸元位或要標列可到作件於"
    "如號稱錯將本能新已效存資組誤者引程值結顯錄訊區除和開會動未果分符提來前格我他這人們了大國",
    "euc-kr": "다이니을지수에습는를하로없시자가일스의정용파합서음사할기리인트한은션어않터오위있문대그으"
    "제만드보옵상해값아작부름함치입데프표실모력패면나여크형고식경전명바소업된",
    "shift_jis": JAPANESE,
    "euc-jp": JAPANESE,
}
WIDE_SETS = {  # encoding → Python's codec of its older, smaller set, with the first and last lead byte of level 1
    "gb18030": ("gb2312", 0xB0, 0xD7),
    "big5": ("big5", 0xA4, 0xC6),
    "euc-kr": ("euc_kr", 0xB0, 0xC8),
    "shift_jis": ("euc_jp", 0xB0, 0xCF),
    "euc-jp": ("euc_jp", 0xB0, 0xCF),
}
COMMON_PUNCTUATION = frozenset("“”‘’„–—…«»·°©®№€£§×•\u00a0¡¿ºª")
WIDE_PUNCTUATION = frozenset("、。「」，．：；（）！？“”　・『』《》【】～…")
