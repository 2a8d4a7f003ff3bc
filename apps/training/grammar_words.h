// The words of the teaching grammar as tables of text.
#pragma once

#include <string_view>

namespace polyhead::training {

// Kinds of nouns: p person, a animal, f food, t thing, r something to read, v vehicle, b building, o something that opens.
// English, French, gender, kind. "a/b" is a singular and an irregular plural.
inline constexpr std::string_view kNouns[] = {
    "man/men homme m p",          "woman/women femme f p",     "boy garçon m p",             "girl fille f p",
    "child/children enfant m p",  "baby bébé m p",             "king roi m p",               "queen reine f p",
    "brother frère m p",          "sister sœur f p",           "father père m p",            "mother mère f p",
    "uncle oncle m p",            "aunt tante f p",            "teacher professeur m p",     "doctor médecin m p",
    "baker boulanger m p",        "farmer fermier m p",        "nurse infirmière f p",       "singer chanteuse f p",
    "dancer danseuse f p",        "neighbour voisin m p",      "friend ami m p",             "student étudiant m p",
    "artist artiste m p",         "hero/heroes héros m p",     "actress actrice f p",        "prince prince m p",
    "princess princesse f p",     "soldier soldat m p",        "driver conducteur m p",      "pupil élève m p",
    "cat chat m a",               "dog chien m a",             "horse cheval m a",           "bird oiseau m a",
    "mouse/mice souris f a",      "cow vache f a",             "goat chèvre f a",            "duck canard m a",
    "owl hibou/hiboux m a",       "rabbit lapin m a",          "bear ours m a",              "elephant éléphant m a",
    "monkey singe m a",           "wolf/wolves loup m a",      "fox renard m a",             "hen poule f a",
    "bee abeille f a",            "butterfly papillon m a",    "snail escargot m a",         "frog grenouille f a",
    "turtle tortue f a",          "squirrel écureuil m a",     "spider araignée f a",        "ant fourmi f a",
    "whale baleine f a",          "animal animal m a",         "donkey âne m a",             "pig cochon m a",
    "apple pomme f f",            "cake gâteau m f",           "egg œuf m f",                "pear poire f f",
    "salad salade f f",           "cheese fromage m f",        "strawberry fraise f f",      "cherry cerise f f",
    "carrot carotte f f",         "tomato/tomatoes tomate f f", "onion oignon m f",          "pie tarte f f",
    "lemon citron m f",           "mushroom champignon m f",   "pancake crêpe f f",          "peach pêche f f",
    "book livre m r",             "letter lettre f r",         "newspaper journal m r",      "story histoire f r",
    "key clé f t",                "hat chapeau m t",           "coat manteau m t",           "shoe chaussure f t",
    "knife/knives couteau m t",   "glass verre m t",           "toy jouet m t",              "jewel bijou/bijoux m t",
    "flower fleur f t",           "chair chaise f t",          "table table f t",            "clock horloge f t",
    "lamp lampe f t",             "ball balle f t",            "picture image f t",          "shirt chemise f t",
    "dress robe f t",             "umbrella parapluie m t",    "pencil crayon m t",          "present cadeau m t",
    "tool outil m t",             "ticket billet m t",         "violin violon m t",          "guitar guitare f t",
    "mirror miroir m t",          "bed lit m t",               "map carte f t",              "candle bougie f t",
    "leaf/leaves feuille f t",    "scarf/scarves écharpe f t", "plate assiette f t",         "stone caillou/cailloux m t",
    "car voiture f v",            "boat bateau m v",           "bicycle vélo m v",           "plane avion m v",
    "train train m v",            "bus bus m v",               "truck camion m v",           "tractor tracteur m v",
    "ship navire m v",            "motorbike moto f v",        "van camionnette f v",        "helicopter hélicoptère m v",
    "house maison f b",           "school école f b",          "church église f b",          "castle château m b",
    "hotel hôtel m b",            "bridge pont m b",           "museum musée m b",           "shop magasin m b",
    "hospital hôpital m b",       "tower tour f b",            "inn auberge f b",            "bakery boulangerie f b",
    "office bureau m b",          "station gare f b",          "library bibliothèque f b",   "island île f b",
    "door porte f o",             "window fenêtre f o",        "box boîte f o",              "bag sac m o",
    "bottle bouteille f o",       "drawer tiroir m o",         "suitcase valise f o",        "cupboard armoire f o"};

// Columns: English; French masculine, feminine, masculine plural, masculine before a vowel ("-": regular); < if the adjective stands before the noun, > if
// after the noun; kinds of nouns that the adjective may describe.
inline constexpr std::string_view kAdjectives[] = {
    "small petit - - - < paftrvbo",          "big grand - - - < paftrvbo",            "fat gros grosse - - < pa",
    "young jeune - - - < pa",                "old vieux vieille - vieil < patrvbo",   "beautiful beau belle beaux bel < patrvbo",
    "new nouveau nouvelle nouveaux nouvel < ptrvbo", "good bon bonne - - < paftrv",   "bad mauvais - - - < pftrv",
    "pretty joli - - - < patrvbo",           "long long longue - - < rvb",            "other autre - - - < paftrvbo",
    "true vrai - - - < r",                   "high haut - - - < b",                   "red rouge - - - > aftrvbo",
    "blue bleu - - - > atrvbo",              "green vert - - - > aftrvbo",            "white blanc blanche - - > aftrvbo",
    "black noir - - - > aftrvbo",            "yellow jaune - - - > aftrvbo",          "grey gris - - - > atvbo",
    "brown brun - - - > aftvbo",             "pink rose - - - > aftrvbo",             "purple violet violette - - > ftrvbo",
    "happy heureux heureuse - - > pa",       "sad triste - - - > par",                "tired fatigué - - - > pa",
    "rich riche - - - > p",                  "poor pauvre - - - > p",                 "strong fort - - - > pa",
    "clever intelligent - - - > pa",         "lazy paresseux paresseuse - - > pa",    "brave courageux courageuse - - > pa",
    "famous célèbre - - - > prb",            "shy timide - - - > pa",                 "polite poli - - - > p",
    "proud fier fière - - > pa",             "jealous jaloux jalouse - - > p",        "calm calme - - - > pa",
    "dangerous dangereux dangereuse - - > avb", "funny drôle - - - > par",            "curious curieux curieuse - - > pa",
    "heavy lourd - - - > tvo",               "light léger légère - - > tvo",          "expensive cher chère - - > ftrvbo",
    "clean propre - - - > tvbo",             "dirty sale - - - > atvbo",              "empty vide - - - > vbo",
    "full plein - - - > vbo",                "dry sec sèche - - > fto",               "wet mouillé - - - > atvo",
    "cold froid - - - > f",                  "hot chaud - - - > f",                   "fresh frais fraîche - - > f",
    "sweet sucré - - - > f",                 "soft doux douce - - > at",              "round rond - - - > to",
    "modern moderne - - - > trvb",           "fast rapide - - - > av",                "slow lent - - - > av",
    "perfect parfait - - - > ftr",           "strange étrange - - - > patrvbo",       "dark sombre - - - > bo",
    "wide large - - - > bo",                 "wild sauvage - - - > a",                "foreign étranger étrangère - - > pfrv",
    "secret secret secrète - - > r",         "delicious délicieux délicieuse - - > f", "rotten pourri - - - > f",
    "royal royal - royaux - > rvb",          "national national - nationaux - > rb",  "loyal loyal - loyaux - > pa"};

// Participles that stand between "is" and a place, as in "is parked outside". Columns: English; French masculine; French feminine; kinds of nouns.
inline constexpr std::string_view kParticiples[] = {
    "parked garé - v",   "hidden caché - atrf",    "lost perdu - patr",       "closed fermé - bo",  "open ouvert ouverte bo",
    "sold vendu - ftrv", "washed lavé - vto",      "painted peint peinte vbo", "forgotten oublié - trfo", "repaired réparé - vt",
    "seated assis assise pa", "built construit construite vb", "cooked cuit cuite f", "invited invité - p"};

// Columns: the English verb; its past tense ("-": regular); the French infinitive, or infinitive,je,il,nous,vous,ils,participle if the verb is irregular; the kinds
// of nouns that may be its subject; those that may be its object ("-": it takes none); "e": its compound tense takes être; "s": it has no English progressive
// form.
inline constexpr std::string_view kVerbs[] = {
    "sleep slept dormir,dors,dort,dormons,dormez,dorment,dormi pa -",
    "run ran courir,cours,court,courons,courez,courent,couru pa -",
    "sing sang chanter p -", "dance - danser p -", "swim swam nager pa -",
    "laugh - rire,ris,rit,rions,riez,rient,ri p -", "cry - pleurer p -", "work - travailler p -",
    "wait - attendre pa -", "jump - sauter pa -", "talk - parler p -", "dream dreamt rêver pa -",
    "walk - marcher pa -", "play - jouer pa -", "listen - écouter p -", "disappear - disparaître,disparais,disparaît,disparaissons,disparaissez,disparaissent,disparu atvr - s",
    "burn - brûler bv -", "arrive - arriver pv - e", "fall fell tomber paftvr - e", "stay - rester pa - e",
    "return - revenir,reviens,revient,revenons,revenez,reviennent,revenu pa - e",
    "leave left partir,pars,part,partons,partez,partent,parti pv - e",
    "eat ate manger pa f", "buy bought acheter,achète,achète,achetons,achetez,achètent,acheté p ftrvb", "sell sold vendre p ftrvb",
    "see saw voir,vois,voit,voyons,voyez,voient,vu pa paftrvbo s", "love - aimer p paftrvb s", "hate - détester p paftrvb s",
    "find found trouver pa aftr s", "lose lost perdre p tr", "read read lire,lis,lit,lisons,lisez,lisent,lu p r",
    "write wrote écrire,écris,écrit,écrivons,écrivez,écrivent,écrit p r", "open - ouvrir,ouvre,ouvre,ouvrons,ouvrez,ouvrent,ouvert p o",
    "close - fermer p o", "wash - laver p tvo", "carry - porter pa ftro", "bring brought apporter p ftro", "prepare - préparer p f",
    "break broke casser p to", "draw drew dessiner p atvb", "paint - peindre,peins,peint,peignons,peignez,peignent,peint p vbo",
    "visit - visiter p b", "build built construire,construis,construit,construisons,construisez,construisent,construit p vb",
    "repair - réparer p vto", "drive drove conduire,conduis,conduit,conduisons,conduisez,conduisent,conduit p v",
    "hear heard entendre pa pa s", "follow - suivre,suis,suit,suivons,suivez,suivent,suivi pa pav", "help - aider p p",
    "call - appeler,appelle,appelle,appelons,appelez,appellent,appelé p pa", "watch - regarder pa pavb", "hide hid cacher pa ftr",
    "choose chose choisir p ftrv", "take took prendre,prends,prend,prenons,prenez,prennent,pris p ftr", "clean - nettoyer,nettoie,nettoie,nettoyons,nettoyez,nettoient,nettoyé p tvbo",
    "forget forgot oublier p tro s", "feed fed nourrir p a", "admire - admirer p ptvb s", "finish - finir p fr",
    "know knew connaître,connais,connaît,connaissons,connaissez,connaissent,connu p pbr s", "touch - toucher p afto",
    "want - vouloir,veux,veut,voulons,voulez,veulent,voulu p aftrvb s", "have had avoir,ai,a,avons,avez,ont,eu p aftrvbo s",
    "lift - soulever,soulève,soulève,soulevons,soulevez,soulèvent,soulevé p afto"};

// Columns: English singular; English plural; French masculine, feminine and plural. "-": there is no such form. "a/b": b stands before a vowel.
inline constexpr std::string_view kDeterminers[] = {
    "the the le/l' la/l' les",      "the the le/l' la/l' les",    "the the le/l' la/l' les",     "a/an some un une des",
    "a/an some un une des",         "this these ce/cet cette ces", "that those ce/cet cette ces", "my my mon ma/mon mes",
    "your your votre votre vos",    "his his son sa/son ses",     "her her son sa/son ses",      "our our notre notre nos",
    "their their leur leur leurs",  "every - chaque chaque -",    "- many - - beaucoup",         "- two - - deux",
    "- three - - trois",            "- four - - quatre",          "- five - - cinq",             "- several - - plusieurs"};

// Columns: English words; French words; for each French word the index of its English word (absent: the same index); kinds of nouns that may follow.
inline constexpr std::string_view kPrepositions[] = {
    "behind|derrière||bvo", "in front of|devant|1|bvo", "near|près de/d'|0 0|bvo", "with|avec||p", "without|sans||pa",
    "next to|à côté de/d'|0 0 1|bvo", "opposite|en face de/d'|0 0 0|b"};

inline constexpr std::string_view kPlaces[] = {
    "here|ici", "there|là", "outside|dehors", "inside|dedans", "everywhere|partout", "upstairs|en haut|0 0", "downstairs|en bas|0 0",
    "at home|à la maison|0 1 1", "in the kitchen|dans la cuisine", "in the garden|dans le jardin", "in the street|dans la rue",
    "in the forest|dans la forêt", "on the beach|sur la plage", "in the city|en ville|0 2", "abroad|à l' étranger|0 0 0",
    "at the market|au marché|0 2", "in the water|dans l' eau", "on the roof|sur le toit", "under the tree|sous l' arbre",
    "on the grass|sur l' herbe", "at the seaside|au bord de la mer|0 2 2 1 2", "in the square|sur la place", "by the river|au bord de la rivière|0 0 0 1 2"};

inline constexpr std::string_view kTimes[] = {
    "every morning|chaque matin", "every day|chaque jour", "every week|chaque semaine", "every year|chaque année", "today|aujourd'hui",
    "now|maintenant", "tonight|ce soir|0 0", "in the evening|le soir|1 2", "at night|la nuit|0 1", "in winter|en hiver", "in summer|en été",
    "at noon|à midi", "at midnight|à minuit", "after lunch|après le déjeuner|0 1 1", "before dinner|avant le dîner|0 1 1",
    "on Sundays|le dimanche", "on Mondays|le lundi"};
inline constexpr std::string_view kPastTimes[] = {"yesterday|hier", "last night|la nuit dernière|1 1 0", "last week|la semaine dernière|1 1 0",
                                           "last year|l' année dernière|1 1 0", "this morning|ce matin", "last summer|l' été dernier|1 1 0",
                                           "in January|en janvier", "two days ago|il y a deux jours|2 2 2 0 1"};
inline constexpr std::string_view kFrequencies[] = {"often|souvent", "always|toujours", "sometimes|parfois", "rarely|rarement", "already|déjà"};
// English verb; its French forms, written as in kVerbs.
inline constexpr std::string_view kModals[] = {"can pouvoir,peux,peut,pouvons,pouvez,peuvent,pu", "must devoir,dois,doit,devons,devez,doivent,dû",
                                        "want vouloir,veux,veut,voulons,voulez,veulent,voulu"};
// Words that begin with h and take no elision.
inline constexpr std::string_view kAspirated[] = {"héros", "hibou", "hiboux", "haut", "haute", "hauts", "hautes"};

}  // namespace polyhead::training
